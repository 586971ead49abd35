#include "rehearsal.hpp"

#include <algorithm>

#include "policies/guided.hpp"
#include "replay.hpp"

namespace lowtide::eager {

namespace {

constexpr Index GREEDY_COMMITS = 1000;
// A plan for less than all of it leaves room for what addresses waste.
constexpr Way WAYS[] = {{true, 1, false}, {true, 0.97, false}, {true, 0.93, false}, {true, 0.88, false},
                        {false, 1, false}, {false, 1, true}};

// A way that recomputes more than so many steps is no way: simulating it would take longer than it could save.
constexpr Nanoseconds PATIENCE = 5;

// What a way spends on reruns and moves; -1: it does not fit, or reruns take more than `most_ns`.
Nanoseconds run(const Tape& tape, Bytes capacity_B, const PolicyOptions& options,
                const std::shared_ptr<const Foresight>& foresight, const Way& way, Nanoseconds most_ns) {
  Guided policy(options);
  policy.guide(foresight, way, foresight != nullptr);
  Rules rules;
  rules.limit = 1 + static_cast<double>(most_ns) / static_cast<double>(std::max<Nanoseconds>(1, tape.time_ns()));
  const ReplayResult result = replay(tape, policy, capacity_B, rules);
  if (result.end != ReplayResult::End::finished) return -1;
  return result.statistics.rerun_ns + policy.moves_ns(result.statistics.moved_B);
}

}  // namespace

Rehearsed rehearse(const Tape& tape, Slice<Tape::Number> fixed, Bytes capacity_B, const PolicyOptions& options) {
  Rehearsed best;
  auto foresight = std::make_shared<Foresight>(tape, fixed);
  const Nanoseconds most_ns = PATIENCE * tape.time_ns();
  best.unguided_ns = best.spent_ns = run(tape, capacity_B, options, nullptr, {}, most_ns);
  for (const Way& way : WAYS) {
    if (best.spent_ns == 0) break;
    if (way.plans) foresight->plan(static_cast<Bytes>(static_cast<double>(capacity_B) * way.share), GREEDY_COMMITS);
    ++best.ways;
    const Nanoseconds spent_ns = run(tape, capacity_B, options, foresight, way, best.spent_ns < 0 ? most_ns : best.spent_ns);
    if (spent_ns < 0 || (best.spent_ns >= 0 && spent_ns >= best.spent_ns)) continue;
    best.spent_ns = spent_ns;
    best.way = way;
    best.advises = true;
  }
  if (best.advises && best.way.plans)
    foresight->plan(static_cast<Bytes>(static_cast<double>(capacity_B) * best.way.share), GREEDY_COMMITS);
  best.foresight = std::move(foresight);
  return best;
}

}  // namespace lowtide::eager
