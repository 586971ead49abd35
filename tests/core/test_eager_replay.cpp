// Replays of random programs: whoever evicts, the books are right, equal runs are equal, and no byte lies over the
// limit.
#include "eager/replay.hpp"

#include <stdexcept>
#include <string>

#include "expect.hpp"
#include "tapes.hpp"

using namespace lowtide;
using namespace lowtide::eager;

namespace {

#ifdef LOWTIDE_CHECK
constexpr std::uint64_t PROGRAMS = 4;  // all books are checked again and again
#else
constexpr std::uint64_t PROGRAMS = 20;
#endif

bool is_equal(const ReplayResult& a, const ReplayResult& b) {
  return a.end == b.end && a.event == b.event && a.statistics.digest == b.statistics.digest && a.peak_B == b.peak_B &&
         a.statistics.recompute_ns == b.statistics.recompute_ns && a.weighed == b.weighed;
}

ReplayResult play(const Tape& tape, const std::string& name, Bytes budget_B, const Rules& rules) {
  const std::unique_ptr<Policy> policy = make_policy(name);
  return replay(tape, *policy, budget_B, rules);  // with LOWTIDE_CHECK the books are checked as it runs
}

void every_policy_keeps_the_books(std::uint64_t seed) {
  const tapes::Program program = tapes::random_program(seed);
  const Tape tape(program.words, program.kept);
  const Bytes enough_B = 2 * program.total_B + (1 << 16);
  for (const std::string& name : policy_names())
    for (const bool addresses : {true, false})
      for (const bool forgets : {true, false}) {
        const Rules rules{addresses, forgets, 64, 256, 5.0};  // far below the floor, recomputations multiply
        const ReplayResult whole = play(tape, name, enough_B, rules);
        EXPECT(whole.end == ReplayResult::End::finished && whole.statistics.recomputations == 0 && whole.statistics.evictions == 0);
        for (const int percent : {80, 50, 25}) {
          const Bytes budget_B = std::max<Bytes>(whole.peak_B * percent / 100, 64);
          const ReplayResult result = play(tape, name, budget_B, rules);
          EXPECT(result.peak_B <= budget_B);
          if (percent == 50) EXPECT(is_equal(result, play(tape, name, budget_B, rules)));
        }
      }
}

void a_limit_ends_it() {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const tapes::Program program = tapes::random_program(seed);
    const Tape tape(program.words, program.kept);
    const Bytes budget_B = play(tape, "lru", 2 * program.total_B + 64, {false, true, 64, 0, 0}).peak_B / 2;
    const ReplayResult free = play(tape, "lru", budget_B, {false, true, 64, 0, 9.0});
    const ReplayResult held = play(tape, "lru", budget_B, {false, true, 64, 0, 1.0});
    if (free.statistics.recompute_ns > 0) EXPECT(held.end == ReplayResult::End::too_slow && held.statistics.recompute_ns == 0);
  }
}

// A chain of evicted values far longer than a stack of the language's frames would be.
void deep_recoveries_need_no_deep_stack() {
  constexpr std::int64_t LENGTH = 20000;
  std::vector<std::int64_t> words{0, 8};
  for (std::int64_t i = 1; i <= LENGTH; ++i) {
    words.insert(words.end(), {1, 0, 1, 1, 1, 0, 0, 0, i, 8});
    words.insert(words.end(), {2, i});  // what it read has no name any more
  }
  words.insert(words.end(), {1, 0, 1, 0, 1, 0, 0, 0, 40});  // takes the place of the end of the chain
  words.insert(words.end(), {2, LENGTH + 2});
  const Tape tape(words, {LENGTH + 1});
  const ReplayResult result = play(tape, "lru", 48, {false, true, 64, 0, 0});
  EXPECT(result.end == ReplayResult::End::finished && result.statistics.recomputations == LENGTH);
}

bool is_refused(std::vector<std::int64_t> words, std::vector<std::int64_t> kept = {}) {
  try {
    const Tape tape(std::move(words), std::move(kept));
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void nonsense_is_refused() {
  EXPECT(is_refused({3}) && is_refused({0}) && is_refused({0, -1}) && is_refused({2, 1}) && is_refused({0, 8, 2, 2}));
  EXPECT(is_refused({0, 8, 2, 1, 2, 1}) && is_refused({0, 8}, {2}) && is_refused({0, 8, 2, 1}, {1}));
  EXPECT(is_refused({0, 8, 1, 0, -1, 1, 1, 0, 0, 0, 1, 8}) && is_refused({0, 8, 1, 0, 1, 1, 1, 0, 0, 0, 2, 8}));
  EXPECT(is_refused({0, 8, 1, 0, 1, 1, 9, 0, 0, 0, 1, 8}) && is_refused({0, 8, 1, 0, 1, 1, 1, 0, 1, 0, 1, 8, 1, 0}));
  EXPECT(is_refused({0, 8, 1, 0, 1, 1, 1, 1, 0, 0, 1, 8, 0, 1}));  // a view with bytes
  EXPECT(!is_refused({0, 8, 1, 0, 1, 1, 1, 0, 1, 0, 1, 8, 0, 0}, {2}));
  EXPECT(is_refused({0, 8, 1, 0, 1, 1, 1, 0, 1, 0, 1, 8, 0, 0}, {1}));  // written over
}

}  // namespace

int main() {
  for (std::uint64_t seed = 0; seed < PROGRAMS; ++seed) every_policy_keeps_the_books(seed);
  a_limit_ends_it();
  deep_recoveries_need_no_deep_stack();
  nonsense_is_refused();
  return TEST_RESULT;
}
