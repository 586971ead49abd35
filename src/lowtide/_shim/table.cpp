#include "table.hpp"

#include <algorithm>
#include <stdexcept>

namespace lowtide::shim {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace

Table::Table(std::vector<Bytes> sizes_B, std::vector<Bytes> offsets_B, std::vector<std::int64_t> first,
             const std::vector<std::string>& names, Bytes alignment_B)
    : sizes_B_(std::move(sizes_B)), offsets_B_(std::move(offsets_B)), first_(std::move(first)) {
  require(sizes_B_.size() == offsets_B_.size(), "a table has one offset per size");
  require(!first_.empty() && first_.front() == 0 && first_.back() == entries(), "first runs from 0 to the entries");
  require(std::is_sorted(first_.begin(), first_.end()), "first is sorted");
  require(names.size() + 1 == first_.size(), "a table has one name per statement");
  for (std::size_t i = 0; i < sizes_B_.size(); ++i) {
    require(sizes_B_[i] >= SMALL_B, "allocations below 512 bytes are not planned");
    require(offsets_B_[i] >= 0 && offsets_B_[i] % alignment_B == 0, "an offset is a multiple of the alignment");
    height_B_ = std::max(height_B_, offsets_B_[i] + sizes_B_[i]);
  }
  names_.reserve(names.size());
  for (const std::string& name : names) names_.push_back(number_of(name));
}

void Run::begin(std::shared_ptr<const Table> with, Slab* on) {
  table = std::move(with);
  slab = on;
  statement = -1;
  next = end = taken = hits = misses = 0;
  is_taken.clear();
}

void Run::at(std::int64_t to) {
  hits += taken;
  misses += statement < 0 ? 0 : end - table->first(statement) - taken;
  statement = to;
  taken = 0;
  next = to < 0 ? 0 : table->first(to);
  end = to < 0 ? 0 : table->first(to + 1);
  is_taken.assign(static_cast<std::size_t>(end - next), 0);
}

void Run::take(std::int64_t entry) {
  const std::int64_t begin = table->first(statement);
  is_taken[static_cast<std::size_t>(entry - begin)] = 1;
  ++taken;
  while (next < end && is_taken[static_cast<std::size_t>(next - begin)] != 0) ++next;
}

}  // namespace lowtide::shim
