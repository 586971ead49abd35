// Table: where the large allocations of one segment of generated code were planned to lie.
//
// Statement i owns the entries first[i] .. first[i + 1] in the order in which its operator allocates; an entry is the
// requested bytes and the offset. Allocations below SMALL_B are in no table. A table never changes.
//
// Run: one execution of a segment. INVARIANT: `next` is the first entry of the statement that is not taken;
// every allocation takes at most one entry and every entry serves at most one allocation per at().
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "names.hpp"

namespace lowtide::shim {

constexpr Bytes SMALL_B = 512;  // requests below it are never planned: they have a zone of their own

class Table {
 public:
  // Throws std::invalid_argument where the arrays do not fit together.
  Table(std::vector<Bytes> sizes_B, std::vector<Bytes> offsets_B, std::vector<std::int64_t> first,
        const std::vector<std::string>& names, Bytes alignment_B);

  std::int64_t statements() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::int64_t entries() const { return static_cast<std::int64_t>(sizes_B_.size()); }
  std::int64_t first(std::int64_t statement) const { return first_[static_cast<std::size_t>(statement)]; }
  Bytes size_B(std::int64_t entry) const { return sizes_B_[static_cast<std::size_t>(entry)]; }
  Bytes offset_B(std::int64_t entry) const { return offsets_B_[static_cast<std::size_t>(entry)]; }
  Name name(std::int64_t statement) const { return names_[static_cast<std::size_t>(statement)]; }
  Bytes height_B() const { return height_B_; }  // the end of the highest planned place

 private:
  std::vector<Bytes> sizes_B_, offsets_B_;
  std::vector<std::int64_t> first_;
  std::vector<Name> names_;  // one per statement
  Bytes height_B_ = 0;
};

class Slab;

struct Run {
  std::shared_ptr<const Table> table;
  Slab* slab = nullptr;            // whose addresses the table speaks of
  std::int64_t statement = -1;     // -1: before the first at()
  std::int64_t next = 0, end = 0;  // entries
  std::int64_t taken = 0;          // of this statement
  std::int64_t hits = 0, misses = 0;  // of this run, up to the last at()
  std::vector<char> is_taken;      // per entry of the statement

  void begin(std::shared_ptr<const Table> with, Slab* on);
  void at(std::int64_t to);        // to lies in [-1, statements)
  void take(std::int64_t entry);   // of this statement, not yet taken
  bool has_taken(std::int64_t entry) const {
    return is_taken[static_cast<std::size_t>(entry - table->first(statement))] != 0;
  }
  Name name() const { return statement < 0 ? 0 : table->name(statement); }
};

}  // namespace lowtide::shim
