// StateHash, SeenStates: states of a search by hash, in a table of fixed size; a newer one takes an older one's slot.
// Hashes have 128 bits, so that two states do not meet by chance.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

// The sum of the words of what is in a state: words may be added and taken away in any order.
struct StateHash {
  std::uint64_t a = 0, b = 0;

  // The word of the fact that `thing` has `value`.
  static StateHash of(std::uint64_t thing, std::uint64_t value) {
    const std::uint64_t seed = mix(thing + 0x243F6A8885A308D3ULL);
    return {mix(seed + value * 0x9E3779B97F4A7C15ULL), mix((seed ^ 0x13198A2E03707344ULL) + value * 0xD1342543DE82EF95ULL)};
  }
  StateHash& operator+=(const StateHash& other) {
    a += other.a;
    b += other.b;
    return *this;
  }
  StateHash& operator-=(const StateHash& other) {
    a -= other.a;
    b -= other.b;
    return *this;
  }
  bool operator==(const StateHash& other) const { return a == other.a && b == other.b; }

 private:
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
};

class SeenStates {
 public:
  // 2^bits slots of 16 bytes, taken when the first state is added.
  explicit SeenStates(unsigned bits) : mask_((std::uint64_t{1} << bits) - 1) {}

  bool has(const StateHash& state) const { return !slots_.empty() && slots_[state.a & mask_] == state; }
  void add(const StateHash& state) {
    if (slots_.empty()) slots_.resize(mask_ + 1);
    slots_[state.a & mask_] = state;
  }

 private:
  std::uint64_t mask_;
  std::vector<StateHash> slots_;
};

}  // namespace lowtide
