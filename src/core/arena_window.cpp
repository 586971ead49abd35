#include "arena_window.hpp"

#include <cmath>
#include <cstddef>

namespace lowtide {

Run cheapest_run(const std::vector<Stretch>& stretches, Bytes need_B) {
  // The run is first .. last. Costs of first .. middle - 1 are summed from the middle outwards in `suffix`, those of
  // middle .. last in `tail`: dropping the first stretch takes one entry of `suffix` off and subtracts nothing.
  const auto count = static_cast<std::ptrdiff_t>(stretches.size());
  const auto stretch = [&](std::ptrdiff_t i) -> const Stretch& { return stretches[static_cast<std::size_t>(i)]; };
  std::vector<double> suffix(stretches.size());
  std::ptrdiff_t first = 0, middle = 0;
  double tail = 0;
  Bytes yield_B = 0, evicted_B = 0;
  Run best;
  const auto drop_first = [&] {
    yield_B -= stretch(first).yield_B;
    evicted_B -= stretch(first).evicted_B;
    ++first;
  };
  for (std::ptrdiff_t last = 0; last < count; ++last) {
    if (std::isinf(stretch(last).cost)) {
      first = middle = last + 1;
      tail = 0;
      yield_B = evicted_B = 0;
      continue;
    }
    tail += stretch(last).cost;
    yield_B += stretch(last).yield_B;
    evicted_B += stretch(last).evicted_B;
    while (first < last && yield_B - stretch(first).yield_B >= need_B) drop_first();
    if (yield_B < need_B) continue;
    if (first >= middle) {  // the outer stack is used up: everything moves there
      double sum = 0;
      for (std::ptrdiff_t i = last; i >= first; --i) suffix[static_cast<std::size_t>(i)] = sum += stretch(i).cost;
      middle = last + 1;
      tail = 0;
    }
    const double cost = suffix[static_cast<std::size_t>(first)] + tail;
    const bool better = best.last < best.first || cost < best.cost || (cost == best.cost && evicted_B < best.evicted_B);
    if (better) best = {first, last, cost, evicted_B};
  }
  return best;
}

}  // namespace lowtide
