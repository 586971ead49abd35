#include "retention.hpp"

#include "expect.hpp"
#include "programs.hpp"

using namespace lowtide;

namespace {

std::vector<Change> random_changes(const Program& program, Random& dice) {
  std::vector<Change> changes;
  for (Index i = dice.below(5) + 1; i > 0; --i) {
    const Index gap = dice.below(program.gap_count());
    const auto same = [&](const Change& c) { return c.gap == gap; };
    if (!program.is_free(gap) || std::any_of(changes.begin(), changes.end(), same)) continue;
    const Index start = program.gap_start(gap), end = program.gap_end(gap);
    const Index choice[] = {KEEP, start + 1, NEVER, start + 1 + dice.below(std::max(1, end - start))};
    Index retention = choice[dice.below(4)];
    const bool fetched = program.can_fetch(program.gap_value[static_cast<std::size_t>(gap)]) &&
                         (!program.can_recompute(gap) || dice.below(2) == 0);
    if (retention != KEEP && fetched) retention = by_fetch(retention);
    changes.push_back({gap, retention});
  }
  return changes;
}

void keep_all_of_a_chain() {
  const Program chain = programs::chain(3);
  Retention state(chain, 0);
  EXPECT(state.is_valid() && state.is_possible());
  EXPECT(state.time() == 3 * 10 + 10 + 3 * 20);
  // x0 x1 x2 and the gradient are live while the first backward makes another: x3 died with the loss.
  EXPECT(state.live(5) == 500);
  EXPECT(state.peak() == 500 && state.peak_stage() == 4);
}

void one_dropped_value() {
  const Program chain = programs::chain(3);
  Retention state(chain, 0);
  const Index gap = chain.gap_at(2, 4);  // x2 between f3 and its backward at stage 5
  EXPECT(state.apply({{gap, chain.gap_start(gap) + 1}}));
  EXPECT((state.recomputations(5) == std::vector<Index>{2}));
  EXPECT(state.time() == 110);
  EXPECT((state.spans(2) == std::vector<Span>{{2, 3}, {5, 5}}));
  EXPECT(state.live(4) == 400 && state.live(5) == 500);
  state.undo();
  EXPECT(state.recomputations(5).empty() && state.time() == 100 && state.live(4) == 500);
  EXPECT(state.is_valid());
}

void one_fetched_value() {
  Program chain = programs::chain(3);
  chain.fetch_B[2] = chain.send_B[2] = 100;
  chain.send_price = 0.25;
  chain.fetch_price = 0.5;
  chain.index();
  Retention state(chain, 0);
  const Index gap = chain.gap_at(2, 4), at_once = chain.gap_start(gap) + 1;
  EXPECT(state.apply({{gap, by_fetch(at_once)}}));
  EXPECT((state.recomputations(5) == std::vector<Index>{chain.stage_count() + 2}));
  EXPECT(state.time() == 100 + 25 + 50 && state.compute() == 100 && state.sent() == 100 && state.fetched() == 100);
  EXPECT((state.spans(2) == std::vector<Span>{{2, 3}, {5, 5}}));
  EXPECT(state.live(4) == 400 && state.live(5) == 500);
  chain.fetch_price = 2;
  EXPECT(state.time() == 100 + 25 + 200);
  state.undo();
  EXPECT(state.recomputations(5).empty() && state.time() == 100 && state.sent() == 0 && state.live(4) == 500);
  EXPECT(state.is_valid());
}

void what_is_let_go_comes_by_fetch_where_nothing_can_rerun_it() {
  Program chain = programs::chain(3);
  chain.fetch_B[0] = 100;
  chain.lost_from[0] = 0;
  chain.index();
  const Retention state(chain, 0);
  EXPECT(state.is_possible() && state.is_valid());
  EXPECT((state.spans(0) == std::vector<Span>{{1, 7}}) && state.fetched() == 100 && state.sent() == 0);
}

void any_number_of_values_may_be_let_go() {
  Program chain = programs::chain(40000);
  for (std::size_t v = 0; v < 40000; ++v) {
    chain.fetch_B[v] = 100;
    chain.lost_from[v] = static_cast<Index>(v);
    chain.recompute_through[v] = -1;
  }
  chain.index();
  const Retention state(chain, 0);
  EXPECT(state.is_possible() && state.fetched() == 100 * 40000 && state.compute() == 40000 * 30 + 10);
}

void random_walks_stay_exact() {
  for (std::uint64_t seed = 0; seed < 90; ++seed) {
    const Program program = programs::random(seed, 10 + static_cast<int>(seed % 60), true, seed >= 50);
    Random dice(seed);
    Retention state(program, 300);
    for (int i = 0; i < 60; ++i) {
      const std::vector<Index> before = state.taus();
      const bool possible = state.apply(random_changes(program, dice));
      if (!possible || dice.below(3) == 0) {
        if (possible) state.undo();
        EXPECT(state.taus() == before);
      } else {
        state.commit();
      }
      if (i % 10 == 0) EXPECT(state.is_valid());
    }
    EXPECT(state.is_valid());
  }
}

void large_closures_are_rejected_whole() {
  const Program chain = programs::chain(40);
  std::vector<Change> all;
  for (Index g = 0; g < chain.gap_count(); ++g)
    if (chain.is_free(g) && chain.gap_value[static_cast<std::size_t>(g)] <= 40)  // activations
      all.push_back({g, NEVER});
  Retention narrow(chain, 0, 8), wide(chain, 0, 2000);
  EXPECT(!narrow.apply(all));
  EXPECT(narrow.is_valid() && narrow.time() == 40 * 30 + 10);
  EXPECT(wide.apply(all));
  wide.commit();
  EXPECT(wide.is_valid() && wide.peak() <= 500);
}

void what_the_caller_lets_go_of_is_brought_back() {
  programs::Builder b;
  const Index x = b.stage({10}, {}, 0, false);
  const Index y = b.stage({10}, {x}, 5);
  b.stage({}, {y}, 0, false);  // handed over, and released
  b.stage({10}, {x, y}, 5);
  b.program.lost_from[static_cast<std::size_t>(y)] = 2;
  const Program program = b.finish();
  Retention state(program, 0);
  EXPECT(state.is_possible() && state.is_valid());
  EXPECT((state.recomputations(3) == std::vector<Index>{1}));
  b.program.recompute_through[1] = -1;
  const Program lost = b.finish();
  EXPECT(!Retention(lost, 0).is_possible());
}

// x -> a -> b -> c, in place where it may be; then a backward that reads what `saved` names.
Program rectifiers(bool saves_b) {
  programs::Builder b;
  const Index x = b.stage({1}, {}, 0, false);
  const Index first = b.stage({10}, {x}, 1);
  const Index second = b.stage({10}, {first}, 1);
  b.takes({first});
  const Index third = b.stage({10}, {second}, 1);
  b.takes({second});
  b.stage({10}, saves_b ? std::vector<Index>{third, second} : std::vector<Index>{third}, 1);
  return b.finish();
}

void a_run_overwrites_what_dies_in_it() {
  const Program program = rectifiers(false);
  const Retention state(program, 0);
  EXPECT(state.live(1) == 11);  // x and the first
  EXPECT(state.live(2) == 10 && state.live(3) == 10);
  EXPECT(program.least_peak(2) == 0 && program.least_peak(1) == 10);
}

void what_is_read_later_is_not_overwritten_until_it_is_dropped() {
  const Program program = rectifiers(true);
  Retention state(program, 0);
  EXPECT(state.live(2) == 10 && state.live(3) == 20);
  // The second goes behind the third's run and is recomputed for the backward, from x, in place of the first.
  const Index second = program.gap_at(2, 4), first = program.gap_at(1, 4);
  EXPECT(state.apply({{second, 4}, {first, 3}}));
  EXPECT((state.recomputations(4) == std::vector<Index>{1, 2}));
  EXPECT(state.live(3) == 11 && state.live(4) == 30);
  state.commit();
  EXPECT(state.is_valid());
}

void what_came_in_another_segment_is_not_overwritten() {
  Program program = rectifiers(false);
  program.opened = {0, 0, 2, 2, 2};
  const Retention state(program, 0);
  EXPECT(state.live(2) == 20 && state.live(3) == 10);
  program.recompute_through[1] = 1;  // and it cannot come anew
  EXPECT(program.least_peak(2) == 10);
}

}  // namespace

int main() {
  a_run_overwrites_what_dies_in_it();
  what_is_read_later_is_not_overwritten_until_it_is_dropped();
  what_came_in_another_segment_is_not_overwritten();
  keep_all_of_a_chain();
  one_dropped_value();
  random_walks_stay_exact();
  one_fetched_value();
  what_is_let_go_comes_by_fetch_where_nothing_can_rerun_it();
  any_number_of_values_may_be_let_go();
  large_closures_are_rejected_whole();
  what_the_caller_lets_go_of_is_brought_back();
  return TEST_RESULT;
}
