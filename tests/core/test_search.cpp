#include "annealer.hpp"
#include "expect.hpp"
#include "greedy.hpp"
#include "programs.hpp"

using namespace lowtide;

namespace {

void greedy_meets_the_budget() {
  const Program chain = programs::chain(30);
  Retention state(chain, 1500);
  Greedy greedy(state);
  while (!greedy.run(1)) {
  }
  EXPECT(state.fits() && state.peak() <= 1500 && state.is_valid());
  EXPECT(greedy.tried() > 0);
}

void greedy_stops_where_nothing_helps() {
  const Program chain = programs::chain(5);
  Retention state(chain, 1);
  Greedy greedy(state);
  EXPECT(greedy.run(100000));
  EXPECT(!state.fits() && state.is_valid());
}

void annealing_is_the_same_however_it_is_sliced() {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Program program = programs::random(seed, 40, true, seed >= 4);
    const Bytes budget = Retention(program, 0).peak() * 7 / 10;
    Retention whole_state(program, budget), sliced_state(program, budget);
    const AnnealingRun annealing_run{seed, 4000, 2.0, 0.02, 0};
    Annealer whole(whole_state, annealing_run), sliced(sliced_state, annealing_run);
    whole.run(4000);
    while (!sliced.run(1 + static_cast<std::int64_t>(seed) * 7)) {
    }
    EXPECT(whole.is_valid() && sliced.is_valid());
    EXPECT(whole.found() == sliced.found() && whole.best_time() == sliced.best_time());
    EXPECT(whole.best_taus() == sliced.best_taus() && whole.lowest_peak() == sliced.lowest_peak());
    EXPECT(whole_state.taus() == sliced_state.taus());
    if (whole.found()) {
      Retention best(program, budget);
      EXPECT(best.assign(whole.best_taus()) && best.fits() && best.time() == whole.best_time());
    }
    Retention lowest(program, budget);
    EXPECT(lowest.assign(whole.lowest_taus()) && lowest.peak() == whole.lowest_peak());
  }
}

void annealing_improves_on_greedy() {
  const Program chain = programs::chain(60);
  Retention state(chain, 2000);
  Greedy(state).run(100000);
  EXPECT(state.fits());
  const Picos greedy = state.time();
  Annealer annealer(state, AnnealingRun{1, 20000, 0.5, 0.005, 0});
  annealer.run(20000);
  EXPECT(annealer.found() && annealer.best_time() <= greedy);
}

void free_fetches_cost_nothing_but_the_floor() {
  Program chain = programs::chain(30);
  for (std::size_t v = 0; v < chain.size.size(); ++v) chain.fetch_B[v] = chain.send_B[v] = chain.size[v];
  chain.index();
  Retention state(chain, 300);
  while (!Greedy(state).run(1)) {
  }
  Annealer annealer(state, AnnealingRun{1, 20000, 0.5, 0.005, 30 * 30 + 10});
  annealer.run(20000);
  EXPECT(annealer.is_valid() && annealer.found() && annealer.best_time() == 30 * 30 + 10);
}

void annealing_stops_when_good_enough() {
  const Program chain = programs::chain(20);
  Retention state(chain, 1 << 20);
  Annealer annealer(state, AnnealingRun{0, 1000, 0.5, 0.005, NEVER});
  EXPECT(annealer.run(1000) && annealer.tried() == 0 && annealer.found());
}

// In chain(n), value k is read by stage k + 1 and by its backward: every link is like its neighbours.
std::vector<Index> twins_of_a_chain(const Program& program, int length) {
  std::vector<Index> classes(static_cast<std::size_t>(program.gap_count()), -1);
  for (Index v = 1; v < length; ++v)
    for (Index k = 0; k < 3; ++k) classes[static_cast<std::size_t>(program.first_gap(v) + k)] = k;
  return classes;
}

void twins_are_found_by_the_distance_between_layers() {
  const Program program = programs::chain(10);
  const Twins twins(program, twins_of_a_chain(program, 10));
  EXPECT(twins.is_valid() && !twins.empty() && Twins().empty());
  const Index gap = program.gap_at(3, 12);
  EXPECT(twins.shifted(program, gap, 2) == program.gap_at(5, 12));
  EXPECT(twins.shifted(program, gap, -9) == -1 && twins.shifted(program, program.gap_at(0, 12), 1) == -1);
  const Index twin = program.gap_at(5, 12), start = program.gap_start(gap), end = program.gap_end(gap);
  EXPECT(translated(program, gap, KEEP, twin) == KEEP && translated(program, gap, NEVER, twin) == NEVER);
  EXPECT(translated(program, gap, start + 1, twin) == program.gap_start(twin) + 1);
  EXPECT(translated(program, gap, end, twin) == program.gap_end(twin));
}

void mirrored_annealing_stays_exact_and_the_same_for_a_seed() {
  const Program program = programs::chain(40);
  std::vector<Index> taus;
  for (int slice : {100000, 7}) {
    Retention state(program, 1800);
    Annealer annealer(state, AnnealingRun{3, 5000, 3.0, 0.03, 0}, Twins(program, twins_of_a_chain(program, 40)));
    while (!annealer.run(slice)) EXPECT(slice == 7);
    EXPECT(annealer.is_valid() && annealer.found());
    EXPECT(taus.empty() || taus == annealer.best_taus());
    taus = annealer.best_taus();
  }
}

void a_focus_restricts_where_proposals_begin() {
  const Program program = programs::chain(40);
  Retention state(program, 3000);
  Annealer annealer(state, AnnealingRun{1, 3000, 1.0, 0.01, 0}, {}, {{30, 34}, {60, 1000}});
  annealer.run(3000);
  EXPECT(annealer.is_valid() && annealer.accepted() > 0);
  Retention none(program, 3000);
  Annealer idle(none, AnnealingRun{1, 3000, 1.0, 0.01, 0}, {}, {{5, 4}});
  EXPECT(idle.run(3000) && idle.tried() == 0);
}

}  // namespace

int main() {
  twins_are_found_by_the_distance_between_layers();
  mirrored_annealing_stays_exact_and_the_same_for_a_seed();
  a_focus_restricts_where_proposals_begin();
  greedy_meets_the_budget();
  greedy_stops_where_nothing_helps();
  annealing_is_the_same_however_it_is_sliced();
  annealing_improves_on_greedy();
  free_fetches_cost_nothing_but_the_floor();
  annealing_stops_when_good_enough();
  return TEST_RESULT;
}
