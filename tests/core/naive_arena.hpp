// An arena that is easy to believe: a sorted list of blocks, and every query answered by looking at all of them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "arena.hpp"

namespace naive {

using lowtide::Block;
using lowtide::Bytes;
using lowtide::End;

struct Hole {
  Bytes lo_B, hi_B;
  Bytes size_B() const { return hi_B - lo_B; }
};

// The best of all windows, or of all slides: what it costs, and where it begins and ends.
struct Best {
  bool found = false;
  double cost = 0;
  Bytes evicted_B = 0, lo_B = -1, hi_B = -1;
};

struct Arena {
  Bytes capacity_B, alignment_B;
  std::vector<Block> blocks{};  // by offset

  Bytes rounded(Bytes size_B) const {
    return (std::max<Bytes>(size_B, 1) + alignment_B - 1) / alignment_B * alignment_B;
  }

  // Aligned bounds, as the arena takes them.
  Hole bounds(Bytes lo_B, Bytes hi_B) const {
    const Bytes hi = std::clamp<Bytes>(hi_B, 0, capacity_B) / alignment_B * alignment_B;
    const Bytes lo = (std::max<Bytes>(lo_B, 0) + alignment_B - 1) / alignment_B * alignment_B;
    return {std::min(lo, hi), hi};
  }

  std::vector<Hole> holes(Hole range) const {
    std::vector<Hole> holes;
    Bytes at_B = 0;
    const auto add = [&](Bytes end_B) {
      const Hole hole{std::max(at_B, range.lo_B), std::min(end_B, range.hi_B)};
      if (hole.size_B() > 0) holes.push_back(hole);
    };
    for (const Block& b : blocks) {
      add(b.offset_B);
      at_B = b.offset_B + b.reserved_B;
    }
    add(capacity_B);
    return holes;
  }

  Bytes free_B(Hole range) const {
    Bytes sum_B = 0;
    for (const Hole& hole : holes(range)) sum_B += hole.size_B();
    return sum_B;
  }

  Bytes in_use_B() const { return capacity_B - free_B({0, capacity_B}); }

  Bytes best_fit(Bytes size_B, Hole range, End end) const {
    const Bytes need_B = rounded(size_B);
    Hole best{-1, -1};
    for (const Hole& hole : holes(range)) {
      if (hole.size_B() < need_B) continue;
      const bool first = best.lo_B < 0 || hole.size_B() < best.size_B();
      if (first || (hole.size_B() == best.size_B() && end == End::high)) best = hole;
    }
    if (best.lo_B < 0) return -1;
    return end == End::low ? best.lo_B : best.hi_B - need_B;
  }

  void insert(Bytes offset_B, Bytes size_B, std::uint64_t tag) {
    const auto after = [&](const Block& b) { return b.offset_B > offset_B; };
    blocks.insert(std::find_if(blocks.begin(), blocks.end(), after), {offset_B, size_B, rounded(size_B), tag});
  }

  bool is_free(Bytes offset_B, Bytes size_B) const {
    if (offset_B < 0 || offset_B + rounded(size_B) > capacity_B) return false;
    return std::none_of(blocks.begin(), blocks.end(), [&](const Block& b) {
      return b.offset_B < offset_B + rounded(size_B) && offset_B < b.offset_B + b.reserved_B;
    });
  }

  // Every pair of a first and a last span.
  template <class Cost>
  Best cheapest_window(Bytes size_B, Hole range, const Cost& cost) const {
    const Bytes need_B = rounded(size_B);
    std::vector<Bytes> cuts{range.lo_B, range.hi_B};
    for (const Block& b : blocks)
      for (Bytes cut_B : {b.offset_B, b.offset_B + b.reserved_B})
        if (cut_B > range.lo_B && cut_B < range.hi_B) cuts.push_back(cut_B);
    std::sort(cuts.begin(), cuts.end());
    Best best;
    for (Bytes lo_B : cuts)
      for (Bytes hi_B : cuts) {
        if (hi_B - lo_B < need_B) continue;
        Best window{true, 0, 0, lo_B, hi_B};
        for (const Block& b : blocks)
          if (b.offset_B < hi_B && lo_B < b.offset_B + b.reserved_B) {
            window.cost += cost(b);
            window.evicted_B += b.reserved_B;
          }
        if (std::isinf(window.cost)) continue;
        const bool cheaper = window.cost < best.cost || (window.cost == best.cost && window.evicted_B < best.evicted_B);
        // Of equals the lowest, as large as it can be.
        const bool equal = window.cost == best.cost && window.evicted_B == best.evicted_B;
        if (!best.found || cheaper || (equal && window.lo_B == best.lo_B && window.hi_B > best.hi_B)) best = window;
      }
    return best;
  }

  // Every pair of a first and a last hole: the fewest bytes that lie between holes which suffice together.
  template <class Movable>
  Best least_slide(Bytes size_B, Hole range, const Movable& movable) const {
    const Bytes need_B = rounded(size_B);
    const std::vector<Hole> all = holes(range);
    Best best;
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t j = i; j < all.size(); ++j) {
        Best slide{true, 0, 0, all[i].lo_B, all[j].hi_B};
        Bytes available_B = 0;
        for (std::size_t k = i; k <= j; ++k) available_B += all[k].size_B();
        for (const Block& b : blocks)
          if (b.offset_B >= slide.lo_B && b.offset_B < slide.hi_B)
            slide.cost += movable(b) ? static_cast<double>(b.requested_B) : std::numeric_limits<double>::infinity();
        if (available_B < need_B || std::isinf(slide.cost)) continue;
        if (!best.found || slide.cost < best.cost) best = slide;
      }
    return best;
  }

  template <class Movable>
  void compact(Hole range, const Movable& movable) {
    Bytes to_B = range.lo_B;
    for (Block& b : blocks) {
      if (b.offset_B + b.reserved_B <= range.lo_B || b.offset_B >= range.hi_B) continue;
      const bool inside = b.offset_B >= range.lo_B && b.offset_B + b.reserved_B <= range.hi_B;
      if (inside && movable(b)) b.offset_B = to_B;
      to_B = b.offset_B + b.reserved_B;
    }
  }
};

}  // namespace naive
