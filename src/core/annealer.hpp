// Annealer: simulated annealing over the gaps of a retention.
//
// Minimises   time + weight * (over + 2 * mean excess),   over = max(0, peak - budget)
// with an adaptive weight: it grows while the state does not fit and shrinks slowly while it does. The mean
// excess tells apart states whose peaks are equal. Metropolis rule, geometric cooling over `moves` proposals.
// Where values can be prefetched, a proposal also says which of what it drops is, and some proposals let
// what is prefetched be recomputed, or the reverse. Where layers repeat (twins.hpp), some proposals are mirrored in
// other layers. A FOCUS restricts the gaps that proposals begin with to those that begin or end in given stretches of
// stages. The best retention that fits is remembered; `lowest_peak` is the least peak up to the first that fits.
// The same seed and number of proposals give the same result, however run() is sliced.
// Invariant: the retention is settled between calls.
#pragma once
#include <vector>

#include "random.hpp"
#include "retention.hpp"
#include "twins.hpp"

namespace lowtide {

struct AnnealingRun {
  std::uint64_t seed = 0;
  std::int64_t moves = 100000;  // proposals until cold
  double start = 0.5;           // first temperature, in mean run times of a stage
  double end = 0.005;           // last one
  Picos enough = 0;             // stop at a retention that fits and takes no longer
};

// Stages [first, last].
struct StageRange {
  Index first;
  Index last;
};

class Annealer {
 public:
  // Without twins nothing is mirrored; without stretches every gap is in focus.
  Annealer(Retention& state, const AnnealingRun& annealing_run, Twins twins = {}, const std::vector<StageRange>& focus = {});
  // At most `moves` more proposals; true when the annealing run is complete or a result is good enough.
  bool run(std::int64_t moves);

  bool found() const { return found_; }
  Picos best_time() const { return best_time_; }
  const std::vector<Index>& best_taus() const { return best_taus_; }
  Bytes lowest_peak() const { return lowest_peak_; }
  const std::vector<Index>& lowest_taus() const { return lowest_taus_; }
  std::int64_t tried() const { return tried_; }
  std::int64_t accepted() const { return accepted_; }
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  bool done() const { return tried_ >= annealing_run_.moves || (found_ && best_time_ <= annealing_run_.enough); }
  double energy() const;
  void propose();
  void mirror();
  void slide(Index gap);
  void flip(Index gap);
  void propose_drops();
  void choose_candidates();
  void change_candidate();
  void keep_for_others(Index gap, Index stage);
  Index pick_fetched();
  Index pick_gap();
  Index pick_stage(Index gap);
  Index pick_dropped();
  void note_dropped(Index gap);
  void remember();
  void adapt();

  Retention* state_;
  AnnealingRun annealing_run_;
  Random random_;
  Twins twins_;
  std::vector<Index> free_;      // gaps in focus worth changing
  std::vector<char> outside_;    // gap -> whether it is out of focus; empty without stretches
  std::vector<char> changed_;    // gap -> whether the proposal has it; scratch of mirror()
  std::vector<Index> dropped_;   // gaps that are not kept, each once; may hold some that are kept again
  std::vector<char> listed_;     // gap -> whether dropped_ has it
  std::vector<Change> changes_;
  double weight_, scale_, temperature_, cool_, energy_;
  std::int64_t tried_ = 0, accepted_ = 0;
  bool found_ = false;
  Picos best_time_ = 0;
  Bytes lowest_peak_;
  std::vector<Index> best_taus_, lowest_taus_;
};

}  // namespace lowtide
