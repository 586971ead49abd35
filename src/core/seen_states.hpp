// SeenStates: a set of hashed states in a table of fixed size; a newer state replaces an older one in its slot.
// Hashes have 128 bits, so that two states do not meet by chance.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

struct StateHash {
  std::uint64_t a = 0x243F6A8885A308D3ULL, b = 0x13198A2E03707344ULL;

  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  void add(std::uint64_t word) {
    a = mix(a + word * 0x9E3779B97F4A7C15ULL);
    b = mix(b ^ (word * 0xD1342543DE82EF95ULL + 0x452821E638D01377ULL));
  }
  bool operator==(const StateHash& other) const { return a == other.a && b == other.b; }
};

class SeenStates {
 public:
  // 2^bits slots of 16 bytes.
  explicit SeenStates(unsigned bits) : slots_(std::size_t{1} << bits, StateHash{0, 0}) {}

  bool has(const StateHash& state) const { return slots_[slot(state)] == state; }
  void add(const StateHash& state) { slots_[slot(state)] = state; }

 private:
  std::size_t slot(const StateHash& state) const { return state.a & (slots_.size() - 1); }

  std::vector<StateHash> slots_;
};

}  // namespace lowtide
