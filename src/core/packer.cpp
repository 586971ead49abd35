#include "packer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace lowtide {

namespace {

constexpr std::size_t BLOCK = 64;  // placed buffers tested at once; the compiler turns the test into vector code

}  // namespace

Bytes Shelf::place_for(Index buffer, Fit fit) const {
  const Index start = lifetimes_->start[at(buffer)], length = lifetimes_->length[at(buffer)];
  const Index period = lifetimes_->period;
  const Bytes size = lifetimes_->size[at(buffer)];
  const std::size_t count = item_.size();
  Bytes top = 0, best = FREE, best_gap = std::numeric_limits<Bytes>::max();
  std::array<unsigned char, BLOCK> hit;
  for (std::size_t begin = 0; begin < count; begin += BLOCK) {
    const std::size_t width = std::min(BLOCK, count - begin);
    const Index* const starts = start_.data() + begin;
    const Index* const lengths = length_.data() + begin;
    for (std::size_t k = 0; k < width; ++k)
      hit[k] = Lifetimes::meet(start, length, starts[k], lengths[k], period);
    for (std::size_t k = 0; k < width; ++k) {
      if (k % 8 == 0 && k + 8 <= width) {
        std::uint64_t eight;
        std::memcpy(&eight, hit.data() + k, sizeof eight);
        if (eight == 0) {
          k += 7;
          continue;
        }
      }
      if (!hit[k]) continue;
      const Index other = item_[begin + k];
      const Bytes gap = offset_[at(other)] - top;
      if (gap >= size && gap < best_gap) {
        best = top;
        best_gap = gap;
        if (fit == Fit::first || gap == size) return best;
      }
      top = std::max(top, this->top(other));
    }
  }
  return best == FREE ? top : best;
}

void Shelf::insert(Index buffer, Bytes offset) {
  const auto above = [&](Bytes limit, Index other) { return limit < offset_[at(other)]; };
  const auto where = std::upper_bound(item_.begin(), item_.end(), offset, above) - item_.begin();
  item_.insert(item_.begin() + where, buffer);
  start_.insert(start_.begin() + where, lifetimes_->start[at(buffer)]);
  length_.insert(length_.begin() + where, lifetimes_->length[at(buffer)]);
  offset_[at(buffer)] = offset;
  height_ = std::max(height_, top(buffer));
}

void Shelf::clear() {
  for (Index buffer : item_) offset_[at(buffer)] = FREE;
  item_.clear();
  start_.clear();
  length_.clear();
  height_ = 0;
}

void Shelf::assign(const Shelf& other, const std::vector<char>& keep) {
  clear();
  for (Index buffer : other.item_) {
    if (!keep[at(buffer)]) continue;
    item_.push_back(buffer);
    start_.push_back(lifetimes_->start[at(buffer)]);
    length_.push_back(lifetimes_->length[at(buffer)]);
    offset_[at(buffer)] = other.offset_[at(buffer)];
    height_ = std::max(height_, top(buffer));
  }
}

bool Shelf::is_valid() const {
  Bytes height = 0;
  for (std::size_t i = 0; i < item_.size(); ++i) {
    const Index a = item_[i];
    height = std::max(height, top(a));
    if (offset(a) < 0 || start_[i] != lifetimes_->start[at(a)] || length_[i] != lifetimes_->length[at(a)]) return false;
    if (i > 0 && offset(item_[i - 1]) > offset(a)) return false;
    for (std::size_t j = 0; j < i; ++j) {
      const Index b = item_[j];
      const bool given = lifetimes_->fixed[at(a)] != FREE && lifetimes_->fixed[at(b)] != FREE;
      if (!given && lifetimes_->meet(a, b) && offset(a) < top(b) && offset(b) < top(a)) return false;
    }
  }
  return height == height_;
}

std::vector<Bytes> place_in_order(const Lifetimes& lifetimes, const std::vector<Index>& order, Fit fit) {
  Shelf shelf(lifetimes);
  for (Index i = 0; i < lifetimes.count(); ++i)
    if (lifetimes.fixed[static_cast<std::size_t>(i)] != FREE)
      shelf.insert(i, lifetimes.fixed[static_cast<std::size_t>(i)]);
  for (Index i : order)
    if (lifetimes.fixed[static_cast<std::size_t>(i)] == FREE) shelf.insert(i, shelf.place_for(i, fit));
  return shelf.offsets();
}

}  // namespace lowtide
