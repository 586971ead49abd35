// What the runtime makes of forecasts before a kernel runs.
#include <algorithm>

#include "runtime.hpp"

namespace lowtide::shim {

Likeness Runtime::likeness(const Closure& closure) const {
  return policy_->partitions() || was_full() ? likeness_of(closure) : Likeness();
}

// A kernel is about to run: chooses its end of the slab, and once the slab has been full, frees bytes for what it is
// going to ask for, after copies of what it writes over. No kernel runs yet, so that everything may move.
void Runtime::expect(const Likeness& like, Slice<Bytes> copies_B) {
  choose_side(like);
  if (like.op == 0 || !was_full()) return;
  c10::SmallVector<Bytes, 8> wanted_B(copies_B.begin(), copies_B.end());
  for (const Bytes size_B : forecasts_.blocks_of(like)) wanted_B.push_back(size_B);
  const Slice<Bytes> blocks_B = {wanted_B.data(), wanted_B.size()};
  Bytes sum_B = 0;
  for (const Bytes size_B : blocks_B) sum_B += capacity_.reserved_for(size_B);
  if (sum_B == 0 || capacity_.fits(sum_B)) return;
  const std::vector<ValueId> before = std::exchange(running_, {});
  sweep();
  if (!would_fit(blocks_B)) make_hole(sum_B);
  moving_.clear();
  running_ = before;
}

// Allocates these blocks one after the other; whether all of them fit at once.
bool Runtime::would_fit(Slice<Bytes> blocks_B) {
  c10::SmallVector<c10::DataPtr, 8> held;  // bytes that nobody uses meanwhile
  for (const Bytes size_B : blocks_B) {
    held.push_back(gates_.block(slab_, size_B));
    c10::DataPtr& block = held.back();
    if (block.get() == nullptr && manager_.make_free(size_B)) block = gates_.block(slab_, size_B);
    moving_.clear();
    if (block.get() == nullptr) return false;
  }
  return true;
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
