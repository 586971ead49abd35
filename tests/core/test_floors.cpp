#include "floors.hpp"

#include "annealer.hpp"
#include "expect.hpp"
#include "greedy.hpp"
#include "programs.hpp"

using namespace lowtide;

namespace {

// Every stage of every retention that a search visits is at or above its floors.
void floors_are_below_all_that_is_reached() {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Program program = seed % 2 ? programs::random(seed, 25, true, seed % 4 == 3) : programs::chain(4 + static_cast<int>(seed));
    const std::vector<Bytes> floors = operator_floors(program);
    Retention state(program, 0);
    Greedy(state).run(100000);
    Annealer annealer(state, AnnealingRun{seed, 2000, 5.0, 0.5, 0});
    annealer.run(2000);
    for (Index t = 0; t < program.stage_count(); ++t) {
      const Bytes floor = floors[static_cast<std::size_t>(t)], cut = cut_floor(program, t);
      EXPECT(floor <= cut);
      EXPECT(cut <= state.live(t));
    }
  }
}

void a_cut_is_the_cheapest_way_to_know_everything_later() {
  // wide (100) -> narrow (1) -> wide again (100), needed later: the narrow one is enough.
  programs::Builder b;
  const Index wide = b.stage({100}, {}, 1, false);
  const Index narrow = b.stage({1}, {wide}, 1);
  const Index again = b.stage({100}, {narrow}, 1);
  b.stage({5}, {}, 1);
  b.stage({}, {again}, 0, false);
  const Program program = b.finish();
  EXPECT(cut_floor(program, 3) == 5 + 1);
  EXPECT(cut_floor(program, 4) == 100);
  EXPECT(operator_floors(program)[3] == 5);
  EXPECT(operator_floors(program)[4] == 100);
}

}  // namespace

int main() {
  floors_are_below_all_that_is_reached();
  a_cut_is_the_cheapest_way_to_know_everything_later();
  return TEST_RESULT;
}
