#include "rehearsal.hpp"

#include <algorithm>

#include "policies/guided.hpp"
#include "replay.hpp"

namespace lowtide::eager {

namespace {

constexpr Index GREEDY_COMMITS = 1000;
// Those that are best most often come first. A plan for less than all of it leaves bytes for what addresses waste.
constexpr Candidate CANDIDATES[] = {{true, 1, false}, {false, 1, false}, {false, 1, true}, {true, 0.97, false}, {true, 0.93, false}};

// A candidate that recomputes more than so many steps is none: simulating it would take longer than it could save.
constexpr Nanoseconds PATIENCE = 5;
// A rehearsal may take as long as what it could save in so many steps takes, or at least a tenth of a second.
constexpr Nanoseconds STEPS = 8, LEAST = 100'000'000;

// What a rehearsal takes, as counted and not as measured: so that a run is the same on any machine.
constexpr Nanoseconds EVENT = 400, RECOMPUTE = 3000, WEIGHED = 300;  // of a replay
constexpr Nanoseconds TRIED = 7;                                 // by the greedy planner, per stage

struct Run {
  Nanoseconds spent_ns = -1;  // on recomputations and slides; -1: it does not fit, or takes more than it may
  Nanoseconds work_ns = 0;    // of finding that out
};

Run run(const Tape& tape, Bytes capacity_B, const PolicyOptions& options, const Density& density,
        const std::shared_ptr<const Foresight>& foresight, const Candidate& candidate, Nanoseconds most_ns) {
  Guided policy(options);
  policy.know(density);
  policy.guide(foresight, candidate, foresight != nullptr);
  Rules rules;
  rules.limit = 1 + static_cast<double>(most_ns) / static_cast<double>(std::max<Nanoseconds>(1, tape.time_ns()));
  const ReplayResult result = replay(tape, policy, capacity_B, rules);
  const auto events = static_cast<std::int64_t>(tape.events().size());
  Run done;
  done.work_ns = EVENT * (result.event == ReplayResult::AT_THE_END ? events : result.event) +
                 RECOMPUTE * result.statistics.recomputations + WEIGHED * result.weighed;
  if (result.end == ReplayResult::End::finished)
    done.spent_ns = result.statistics.recompute_ns + policy.moves_ns(result.statistics.moved_B);
  return done;
}

}  // namespace

std::int64_t Rehearsed::prepare(const Candidate& candidate) const {
  if (!candidate.plans) return 0;
  return foresight->plan(static_cast<Bytes>(static_cast<double>(capacity_B) * candidate.share), GREEDY_COMMITS);
}

Rehearsed rehearse(const Tape& tape, Bytes capacity_B, const PolicyOptions& options, const Density& density) {
  Rehearsed found;
  found.foresight = std::make_shared<Foresight>(tape);
  found.capacity_B = capacity_B;
  const Nanoseconds most_ns = PATIENCE * tape.time_ns();
  const Run unguided = run(tape, capacity_B, options, density, nullptr, {}, most_ns);
  found.unguided_ns = unguided.spent_ns;
  const Nanoseconds to_beat_ns = unguided.spent_ns < 0 ? most_ns : unguided.spent_ns;
  const Nanoseconds may_take_ns = std::max(LEAST, STEPS * to_beat_ns);
  Nanoseconds work_ns = unguided.work_ns;
  for (const Candidate& candidate : CANDIDATES) {
    if (unguided.spent_ns == 0 || work_ns > may_take_ns) break;
    work_ns += TRIED * found.foresight->stages() * found.prepare(candidate);
    ++found.candidates;
    const Run tried = run(tape, capacity_B, options, density, found.foresight, candidate, to_beat_ns);
    work_ns += tried.work_ns;
    if (tried.spent_ns >= 0 && (unguided.spent_ns < 0 || tried.spent_ns < unguided.spent_ns))
      found.gains.push_back({candidate, tried.spent_ns});
  }
  std::stable_sort(found.gains.begin(), found.gains.end(),
                   [](const Rehearsed::Tried& a, const Rehearsed::Tried& b) { return a.spent_ns < b.spent_ns; });
  return found;
}

}  // namespace lowtide::eager
