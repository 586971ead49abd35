// Random: a small generator with the same numbers on every machine (splitmix64).
#pragma once
#include <cstdint>

#include "rows.hpp"

namespace lowtide {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 0x853C49E6748FEA9BULL) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n); n > 0.
  Index below(Index n) { return static_cast<Index>(next() % static_cast<std::uint64_t>(n)); }
  // Uniform in (0, 1].
  double unit() { return (static_cast<double>(next() >> 11) + 1.0) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace lowtide
