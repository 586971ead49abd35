// Forecasts: what an operator is expected to cost and to ask for: what it did when it ran last on like shapes.
//
// Like are calls of one operator whose tensors have the same sizes and widths, and whose lists of numbers are the same;
// where none was seen yet, any call of that operator will do.
#pragma once
#include <c10/util/flat_hash_map.h>

#include "closure.hpp"

namespace lowtide::shim {

using eager::Slice;

// Equal for like calls, but for one in 2^64; nothing at all: op is 0.
struct Likeness {
  std::uint64_t op = 0, call = 0;
};

Likeness likeness_of(const Closure& closure);

struct Forecast {
  eager::Nanoseconds cost_ns = 0;
  Bytes size_B = 0;  // of its largest new result; 0: it makes none
};

class Forecasts {
 public:
  // What is expected of such a call; null where its operator has not run yet.
  const Forecast* of(const Likeness& like) const;
  // A call has run.
  void learn(const Likeness& like, const Forecast& forecast);
  // What such a call is going to have together at most, in the order in which it asks; nothing if none was seen.
  Slice<Bytes> blocks_of(const Likeness& like) const;
  // A call has asked for results and workspaces.
  void asked(const Likeness& like, std::vector<Bytes> blocks_B);

 private:
  ska::flat_hash_map<std::uint64_t, Forecast> of_;
  ska::flat_hash_map<std::uint64_t, std::vector<Bytes>> blocks_B_;
};

}  // namespace lowtide::shim
