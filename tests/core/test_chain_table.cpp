#include "chain_table.hpp"
#include "expect.hpp"

using namespace lowtide;

namespace {

// n links that take 10 to run, 2 slots to run and 3 to reverse; one slot crosses behind each; nothing of a
// link is saved.
ChainCosts plain_chain(Index n) {
  ChainCosts costs;
  const std::size_t count = static_cast<std::size_t>(n);
  costs.run.assign(count, 10);
  costs.alone.assign(count, 0);
  costs.running.assign(count, 2);
  costs.reversing.assign(count, 3);
  costs.behind.assign(count, 0);
  costs.held.assign(count * count, 0);
  for (std::size_t first = 0; first < count; ++first)
    for (std::size_t s = first + 1; s < count; ++s) costs.held[first * count + s] = 1;
  costs.option_begin.assign(count + 1, 0);
  return costs;
}

void enough_slots_run_every_link_once() {
  const ChainTable table(plain_chain(10), 30);
  EXPECT(table.is_valid() && table.time(30) == 90.0);
  EXPECT(table.least() > 0 && table.time(table.least()) > 90.0);
}

void few_slots_run_links_again_and_again() {
  const ChainTable table(plain_chain(40), 60);
  // One link at a time from the start: 39 + 38 + ... + 1 runs.
  EXPECT(table.least() == 4 && table.time(4) == 10.0 * 39 * 40 / 2);
}

void a_plan_names_a_cut_point_for_every_cut() {
  const ChainTable table(plain_chain(12), 20);
  for (Index slots = table.least(); slots <= 20; ++slots) {
    const ChainPlan plan = table.decode(slots);
    for (Index k = 0; k + 1 < 12; ++k) {
      EXPECT(plan.crossing_from[static_cast<std::size_t>(k)] >= ChainPlan::FROM_START);
      EXPECT(plan.option[static_cast<std::size_t>(k)] == ChainPlan::NOT);
    }
    EXPECT(plan.crossing_from.back() == ChainPlan::NOT);
  }
}

void an_option_that_saves_pays_where_slots_are_free() {
  ChainCosts costs = plain_chain(6);
  costs.alone.assign(6, 10);
  for (std::size_t k = 0; k < 6; ++k) {
    costs.option_saved.push_back(2);
    costs.option_running.push_back(3);
    costs.option_reversing.push_back(3);
    costs.option_time.push_back(0);
    costs.option_begin[k + 1] = static_cast<Index>(k) + 1;
  }
  const ChainTable table(costs, 40);
  // Every link but the last one is saved as it runs.
  EXPECT(table.is_valid() && table.time(40) == 60.0);
  const ChainPlan plan = table.decode(40);
  EXPECT(plan.option[0] == 0 && plan.saved_from[0] == ChainPlan::FROM_START);
}

void what_is_no_chain_is_told_apart() {
  ChainCosts costs = plain_chain(3);
  EXPECT(costs.is_valid());
  costs.held[1] = -1;
  EXPECT(!costs.is_valid());
  costs = plain_chain(3);
  costs.option_begin.back() = 1;
  EXPECT(!costs.is_valid());
}

}  // namespace

int main() {
  enough_slots_run_every_link_once();
  few_slots_run_links_again_and_again();
  a_plan_names_a_cut_point_for_every_cut();
  an_option_that_saves_pays_where_slots_are_free();
  what_is_no_chain_is_told_apart();
  return TEST_RESULT;
}
