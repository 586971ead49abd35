// Rows: a list of short integer lists in two flat arrays (compressed rows).
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bytes.hpp"

namespace lowtide {

using Index = std::int32_t;  // a stage, a value, a gap
using Picos = std::int64_t;  // 1e-12 s: sums of seconds are exact and independent of their order

// A read-only window on consecutive integers.
struct Slice {
  const Index* first;
  const Index* last;
  const Index* begin() const { return first; }
  const Index* end() const { return last; }
  Index size() const { return static_cast<Index>(last - first); }
  Index operator[](Index i) const { return first[i]; }
};

// Row i is item[begin[i] .. begin[i + 1]). Invariant: begin is sorted, starts at 0, ends at item.size().
struct Rows {
  std::vector<Index> begin{0};
  std::vector<Index> item;

  Index size() const { return static_cast<Index>(begin.size()) - 1; }
  Slice operator[](Index i) const {
    return {item.data() + begin[static_cast<std::size_t>(i)], item.data() + begin[static_cast<std::size_t>(i) + 1]};
  }
  void push_row(const std::vector<Index>& row) {
    item.insert(item.end(), row.begin(), row.end());
    begin.push_back(static_cast<Index>(item.size()));
  }
  bool is_valid() const {
    if (begin.empty() || begin.front() != 0 || begin.back() != static_cast<Index>(item.size())) return false;
    for (std::size_t i = 1; i < begin.size(); ++i)
      if (begin[i] < begin[i - 1]) return false;
    return true;
  }
};

}  // namespace lowtide
