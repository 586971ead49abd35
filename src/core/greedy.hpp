// Greedy: from any retention towards its budget, one committed drop at a time.
//
// Each step looks at the stage with the most live bytes, ranks what lies idle across it by bytes (less for
// short gaps) over the time to rematerialise it, applies the best few alone, with relatives, and by prefetch, exactly,
// and commits the one that removes most excess per added second. It stops when the budget is met or nothing helps.
// Deterministic. Invariant: the retention is settled (nothing to undo) between calls.
#pragma once
#include "retention.hpp"

namespace lowtide {

class Greedy {
 public:
  explicit Greedy(Retention& state, Index candidates = 6) : state_(&state), candidates_(candidates) {}
  // At most `steps` commits; true when there is nothing left to do.
  bool run(Index steps);
  std::int64_t tried() const { return tried_; }

 private:
  bool step();
  bool improve_at(Index stage);
  void rank(Index stage);
  void consider(Index stage);
  void consider_fetch(Index value, Index stage);

  Retention* state_;
  Index candidates_;
  std::int64_t tried_ = 0;
  struct Ranked {
    double score;
    Index value;
  };
  std::vector<Ranked> ranked_;
  std::vector<Change> changes_, best_;
  double best_rate_ = 0;
};

}  // namespace lowtide
