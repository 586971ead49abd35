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
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Program program = programs::random(seed, 40);
    const Bytes budget = Retention(program, 0).peak() * 7 / 10;
    Retention whole_state(program, budget), sliced_state(program, budget);
    const Cooling cooling{seed, 4000, 2.0, 0.02, 0};
    Annealer whole(whole_state, cooling), sliced(sliced_state, cooling);
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
  Annealer annealer(state, Cooling{1, 20000, 0.5, 0.005, 0});
  annealer.run(20000);
  EXPECT(annealer.found() && annealer.best_time() <= greedy);
}

void annealing_stops_when_good_enough() {
  const Program chain = programs::chain(20);
  Retention state(chain, 1 << 20);
  Annealer annealer(state, Cooling{0, 1000, 0.5, 0.005, NEVER});
  EXPECT(annealer.run(1000) && annealer.tried() == 0 && annealer.found());
}

}  // namespace

int main() {
  greedy_meets_the_budget();
  greedy_stops_where_nothing_helps();
  annealing_is_the_same_however_it_is_sliced();
  annealing_improves_on_greedy();
  annealing_stops_when_good_enough();
  return TEST_RESULT;
}
