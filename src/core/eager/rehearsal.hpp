// Rehearsal: a recorded step, simulated under several candidates of evicting its values, for the next step to
// follow one that is shown to spend less. It ends early once it has taken as long as what it could save in a few steps
// takes: in work that is counted, not in time that is measured. Nothing is changed by it, and it may run on any thread.
#pragma once
#include <memory>
#include <vector>

#include "foresight.hpp"
#include "policies/density.hpp"
#include "policy.hpp"

namespace lowtide::eager {

struct Rehearsed {
  struct Tried {
    Candidate candidate;
    Nanoseconds spent_ns;  // on recomputations and slides
  };
  std::shared_ptr<Foresight> foresight;
  Bytes capacity_B = 0;
  Nanoseconds unguided_ns = -1;  // spent by what knows nothing; -1: it does not fit
  std::vector<Tried> gains;      // the candidates that spend less than that, the best first
  int candidates = 0;                  // how many were tried

  // Before a step follows a candidate: finds its plan, if it has one. Returns what the planner tried.
  std::int64_t prepare(const Candidate& candidate) const;
};

// `density`: as known when the next step begins. Deterministic. O(calls x what policies look at), and a thousand
// commits of the greedy planner.
Rehearsed rehearse(const Tape& tape, Bytes capacity_B, const PolicyOptions& options, const Density& density);

}  // namespace lowtide::eager
