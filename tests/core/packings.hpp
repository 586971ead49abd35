// Lifetimes to place in tests.
#pragma once
#include <algorithm>

#include "lifetimes.hpp"
#include "random.hpp"

namespace examples {

using namespace lowtide;

inline void add(Lifetimes& all, Index start, Index length, Bytes size, Bytes fixed = FREE) {
  all.start.push_back(start);
  all.length.push_back(length);
  all.size.push_back(size);
  all.fixed.push_back(fixed);
}

// Any arcs and sizes on a line or a circle; the first `given` have offsets, one above another.
inline Lifetimes random(std::uint64_t seed, Index count, bool cyclic, Index given) {
  Random draw(seed);
  Lifetimes all;
  const Index ticks = count;
  all.period = cyclic ? ticks : 2 * ticks + 2;
  Bytes top = 0;
  for (Index i = 0; i < count; ++i) {
    const Index start = draw.below(ticks);
    const Index length = 1 + draw.below(cyclic ? ticks : ticks - start);
    const Bytes size = 1 + draw.below(30);
    const Bytes offset = top + draw.below(4);
    add(all, start, length, size, i < given ? offset : FREE);
    if (i < given) top = offset + size;
  }
  return all;
}

// A rectangle of 40 ticks and 64 bytes, cut into pieces: it fits 64 bytes, with nothing to spare.
inline Lifetimes perfect(std::uint64_t seed, std::size_t pieces) {
  struct Piece {
    Index start, stop, low, high;
  };
  Random draw(seed);
  std::vector<Piece> all{{0, 40, 0, 64}};
  while (all.size() < pieces) {
    const auto which = static_cast<std::size_t>(draw.below(static_cast<Index>(all.size())));
    const Piece p = all[which];
    if (draw.below(2) == 0 && p.stop - p.start > 1) {
      const Index cut = p.start + 1 + draw.below(p.stop - p.start - 1);
      all[which].stop = cut;
      all.push_back({cut, p.stop, p.low, p.high});
    } else if (p.high - p.low > 1) {
      const Index cut = p.low + 1 + draw.below(p.high - p.low - 1);
      all[which].high = cut;
      all.push_back({p.start, p.stop, cut, p.high});
    }
  }
  Lifetimes lifetimes;
  lifetimes.period = 82;
  for (const Piece& p : all) add(lifetimes, p.start, p.stop - p.start, p.high - p.low);
  return lifetimes;
}

// Whether no two buffers share a tick and a byte, and given offsets are kept; and nothing ends above `height`.
inline bool is_legal(const Lifetimes& all, const std::vector<Bytes>& offsets, Bytes height) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] < 0 || offsets[i] + all.size[i] > height) return false;
    if (all.fixed[i] != FREE && offsets[i] != all.fixed[i]) return false;
    for (std::size_t j = 0; j < i; ++j)
      if (all.meet(static_cast<Index>(i), static_cast<Index>(j)) && offsets[i] < offsets[j] + all.size[j] &&
          offsets[j] < offsets[i] + all.size[i])
        return false;
  }
  return true;
}

inline Bytes height(const Lifetimes& all, const std::vector<Bytes>& offsets) {
  Bytes height = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) height = std::max(height, offsets[i] + all.size[i]);
  return height;
}

}  // namespace examples
