// Packer: gives buffers offsets one after another, in an order that somebody else chose.
//
// A buffer goes into a gap between those that are already placed and live at one of its ticks: the lowest gap that
// is large enough, or the smallest one that is (the lowest of equals); failing that, above them all. Buffers with a
// given offset are placed first, whatever the order.
//
// Shelf: the placed buffers, by rising offset. Placing one scans the shelf once: O(placed), a few placed buffers per
// nanosecond; no overlap graph is built, so memory is O(buffers).
// Invariant: no two buffers on the shelf share a tick and a byte, those with given offsets apart.
#pragma once
#include <vector>

#include "lifetimes.hpp"

namespace lowtide {

enum class Fit { first, best };

class Shelf {
 public:
  explicit Shelf(const Lifetimes& lifetimes) : lifetimes_(&lifetimes), offset_(lifetimes.size.size(), FREE) {}

  // Where the buffer would go; changes nothing.
  Bytes place_for(Index buffer, Fit fit) const;
  void insert(Index buffer, Bytes offset);
  void clear();
  // Becomes those of `other` that `keep` names by a non-zero entry.
  void assign(const Shelf& other, const std::vector<char>& keep);

  Bytes offset(Index buffer) const { return offset_[at(buffer)]; }
  Bytes top(Index buffer) const { return offset_[at(buffer)] + lifetimes_->size[at(buffer)]; }
  Bytes height() const { return height_; }
  const std::vector<Bytes>& offsets() const { return offset_; }
  const std::vector<Index>& items() const { return item_; }
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  const Lifetimes* lifetimes_;
  std::vector<Index> item_, start_, length_;  // by offset; the arcs repeated here are what a scan reads
  std::vector<Bytes> offset_;                 // by buffer; FREE: not on the shelf
  Bytes height_ = 0;
};

// Places every buffer in the given order, which names each once; returns the offsets.
std::vector<Bytes> place_in_order(const Lifetimes& lifetimes, const std::vector<Index>& order, Fit fit);

}  // namespace lowtide
