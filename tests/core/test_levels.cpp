#include "expect.hpp"
#include "levels.hpp"
#include "random.hpp"

using namespace lowtide;

namespace {

void levels_agree_with_plain_ones() {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Random dice(seed);
    const Index count = 1 + dice.below(400);
    Levels levels;
    levels.reset(count, 10, 50);
    std::vector<Bytes> plain(static_cast<std::size_t>(count), 10);
    Bytes budget = 50;
    for (int step = 0; step < 500; ++step) {
      const Index first = dice.below(count), last = first + dice.below(count - first);
      const Bytes size = dice.below(41) - 20;
      levels.add(first, last, size);
      for (Index t = first; t <= last; ++t) plain[static_cast<std::size_t>(t)] += size;
      if (dice.below(50) == 0) levels.set_budget(budget = dice.below(100));
      if (dice.below(3) == 0) continue;  // queries are not made after every change
      const auto top = std::max_element(plain.begin(), plain.end());
      Bytes excess = 0;
      for (Bytes b : plain) excess += std::max<Bytes>(0, b - budget);
      EXPECT(levels.top() == *top && levels.top_stage() == top - plain.begin() && levels.excess() == excess);
      EXPECT(levels[first] == plain[static_cast<std::size_t>(first)] && levels.is_valid());
    }
  }
}

void no_stages_have_no_level() {
  Levels levels;
  levels.reset(0, 10, 5);
  levels.add(3, 2, 7);
  EXPECT(levels.top() == 0 && levels.excess() == 0 && levels.is_valid());
}

}  // namespace

int main() {
  levels_agree_with_plain_ones();
  no_stages_have_no_level();
  return TEST_RESULT;
}
