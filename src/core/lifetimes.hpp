// Lifetimes: buffers that want bytes, each with an arc of ticks on a circle and a size.
//
// The circle is the period after which everything happens again. What happens once lies on a circle that is more
// than twice as long as the last tick, so that no two arcs meet behind it. Sizes and offsets are in any unit, the
// alignment for instance; a given offset makes a buffer a live block.
// Invariant: 0 <= start < period, 0 < length <= period, size > 0, fixed >= 0 or FREE.
#pragma once
#include "rows.hpp"

namespace lowtide {

constexpr Bytes FREE = -1;  // as a fixed offset: anywhere

struct Lifetimes {
  std::vector<Index> start, length;
  std::vector<Bytes> size, fixed;
  Index period = 1;

  Index count() const { return static_cast<Index>(start.size()); }

  // Whether two arcs share a tick.
  static bool meet(Index a_start, Index a_length, Index b_start, Index b_length, Index period) {
    Index ahead = b_start - a_start;
    ahead += ahead < 0 ? period : 0;
    return (ahead < a_length) | (period - ahead < b_length);
  }
  bool meet(Index a, Index b) const {
    const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    return meet(start[i], length[i], start[j], length[j], period);
  }

  bool is_valid() const {
    const std::size_t n = start.size();
    if (period <= 0 || length.size() != n || size.size() != n || fixed.size() != n) return false;
    for (std::size_t i = 0; i < n; ++i)
      if (start[i] < 0 || start[i] >= period || length[i] <= 0 || length[i] > period || size[i] <= 0 || fixed[i] < FREE)
        return false;
    return true;
  }
};

}  // namespace lowtide
