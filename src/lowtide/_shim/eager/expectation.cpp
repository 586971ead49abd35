// What the runtime makes of forecasts before a kernel runs.
#include <algorithm>

#include "runtime.hpp"

namespace lowtide::shim {

Likeness Runtime::likeness(const Closure& closure) const {
  return policy_->partitions() ? likeness_of(closure) : Likeness();
}

// Says from which end of the slab the kernel that comes is served.
void Runtime::choose_side(const Likeness& like) {
  const Forecast* const forecast = like.op == 0 ? nullptr : forecasts_.of(like);
  slab_.set_side(forecast == nullptr || forecast->size_B == 0 ? End::low
                                                              : policy_->end_for(forecast->cost_ns, forecast->size_B));
}

void Runtime::learn(const Likeness& like, Nanoseconds cost_ns, Slice<eager::Made> made, std::size_t consumed) {
  if (like.op == 0) return;
  Bytes size_B = 0;
  for (std::size_t i = consumed; i < made.size(); ++i) size_B = std::max(size_B, made[i].size_B);
  forecasts_.learn(like, {cost_ns, size_B});
}

}  // namespace lowtide::shim
