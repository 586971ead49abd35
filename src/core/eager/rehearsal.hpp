// Rehearsal: a recorded step, run again in simulation under several ways of giving up its values; the best is for the next
// step. It ends early once it has taken as long as what it could save in a few steps takes: in work that is counted, not
// in time that is measured. Nothing is changed by it, and it may run on any thread.
#pragma once
#include <memory>

#include "foresight.hpp"
#include "policy.hpp"

namespace lowtide::eager {

struct Rehearsed {
  std::shared_ptr<const Foresight> foresight;
  Way way;
  bool advises = false;  // some way takes less than what knows nothing
  Nanoseconds spent_ns = -1, unguided_ns = -1;  // on reruns and moves: the best way, none; -1: it does not fit
  int ways = 0;                                 // how many were tried
};

// `fixed`: see Foresight. Deterministic. O(calls x what policies look at), and a thousand commits of the greedy planner.
Rehearsed rehearse(const Tape& tape, Slice<Tape::Number> fixed, Bytes capacity_B, const PolicyOptions& options);

}  // namespace lowtide::eager
