#include "arena_window.hpp"

#include <cmath>

namespace lowtide {

Run cheapest_run(const std::vector<Stretch>& stretches, Bytes need_B, std::vector<double>& sum_from) {
  // The run is first .. last. Costs of first .. middle - 1 are summed from middle - 1 down in `sum_from`, those of
  // middle .. last in `tail`: dropping the first stretch takes one entry of `sum_from` off and subtracts nothing.
  sum_from.resize(stretches.size());
  std::size_t first = 0, middle = 0;
  double tail = 0;
  Bytes yield_B = 0, evicted_B = 0;
  Run best;
  for (std::size_t last = 0; last < stretches.size(); ++last) {
    const Stretch& added = stretches[last];
    if (std::isinf(added.cost)) {
      first = last + 1;
      yield_B = evicted_B = 0;
      continue;
    }
    tail += added.cost;
    yield_B += added.yield_B;
    evicted_B += added.evicted_B;
    for (; first < last && yield_B - stretches[first].yield_B >= need_B; ++first) {
      yield_B -= stretches[first].yield_B;
      evicted_B -= stretches[first].evicted_B;
    }
    if (yield_B < need_B) continue;
    if (first >= middle) {  // the inner sums are used up: sum anew what is in the run
      double sum = 0;
      for (std::size_t i = last + 1; i-- > first;) sum_from[i] = sum += stretches[i].cost;
      middle = last + 1;
      tail = 0;
    }
    const double cost = sum_from[first] + tail;
    if (!best.found() || cost < best.cost || (cost == best.cost && evicted_B < best.evicted_B))
      best = {first, last, cost, evicted_B};
  }
  return best;
}

}  // namespace lowtide
