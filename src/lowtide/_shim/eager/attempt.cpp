// A kernel in a slab that may be full: what happens where an allocation does not fit.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "pass.hpp"

namespace lowtide::shim {

namespace {

// What is written behind a schema's back, as it was: for the case that the kernel has to run a second time.
class Untouched {
 public:
  void add(c10::intrusive_ptr<Storage> storage) {
    auto content = std::make_unique<char[]>(storage->nbytes());
    std::memcpy(content.get(), bytes(*storage), storage->nbytes());
    kept_.emplace_back(std::move(storage), std::move(content));
  }
  void put_back() {
    for (const auto& [storage, content] : kept_) std::memcpy(bytes(*storage), content.get(), storage->nbytes());
  }

 private:
  static void* bytes(Storage& storage) { return storage._mutable_data_ptr_no_checks().get(); }

  std::vector<std::pair<c10::intrusive_ptr<Storage>, std::unique_ptr<char[]>>> kept_;
};

}  // namespace

// Drops what a kernel may have begun to overwrite, and recomputes it; false where that fails.
bool Runtime::make_again(const Pass& pass, Lock& lock) {
  const auto can_return = [&](ValueId value) { return !ledger_[value].is_leaf() && may_move(value); };
  if (!pass.closure || pass.op.is_out || pass.written.empty() ||
      !std::all_of(pass.written.begin(), pass.written.end(), can_return))
    return false;
  const auto found = shortage_;
  waits_ = &pass.op.name;
  const Slice<ValueId> written = {pass.written.data(), pass.written.size()};
  for (const ValueId value : written) manager_.give_up(value);
  try {
    bring(written, lock);
  } catch (...) {
    waits_ = nullptr;
    throw;
  }
  waits_ = nullptr;
  manager_.leave(written);
  shortage_ = found;
  return true;
}

// Runs the kernel; again, with one hole for all that it is known to ask for, where that may help.
void Runtime::attempt(Pass& pass, torch::jit::Stack& stack, Lock& lock) {
  const bool is_clean = pass.is_spared || (pass.written.empty() && !pass.op.is_out);
  const std::size_t first = stack.size() - pass.op.arguments;
  const bool has_all = pass.closure && !pass.is_spared;  // the replay record has all arguments
  torch::jit::Stack kept;  // of what has none
  if (is_clean && !has_all) kept.assign(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  Untouched untouched;
  if (pass.is_spared)
    for (const ValueId value : pass.written) untouched.add(bodies_[value].hold());
  if (pass.closure) pass.like = likeness(closures_[*pass.closure]);
  expect(pass.like);
  look_before(pass);
  Meter meter(slab_, pass.like.op != 0 && was_full());
  const std::vector<ValueId> before = std::exchange(running_, {pass.inputs.begin(), pass.inputs.end()});
  Bytes hole_B = 0;
  for (;;) {
    meter.begin();
    lock.unlock();
    try {
      pass.op.handle.redispatchBoxed(pass.keys, &stack);
      lock.lock();
      running_ = before;
      look_after(pass);
      if (meter.is_on()) {
        std::vector<Bytes> blocks_B = meter.end();
        pass.asked_B = std::accumulate(blocks_B.begin(), blocks_B.end(), Bytes{0});
        forecasts_.asked(pass.like, std::move(blocks_B));
      }
      return;
    } catch (const c10::OutOfMemoryError&) {
      lock.lock();
      running_ = before;
      look_after(pass);
    }
    c10::SmallVector<c10::intrusive_ptr<Storage>, 8> held;  // the stack may have been their only owner
    for (const ValueId value : pass.inputs) held.push_back(bodies_[value].hold());
    stack.resize(first);
    hole_B = hole_for_another(hole_B, is_clean || make_again(pass, lock), pass.op.name);
    if (pass.draw) pass.draw->rewind();
    running_.assign(pass.inputs.begin(), pass.inputs.end());
    torch::jit::Stack arguments = kept;
    untouched.put_back();
    if (has_all)
      rebuild(closures_[*pass.closure], [&](std::int32_t i) { return hold(pass.read[static_cast<std::size_t>(i)]); },
              arguments);
    stack.insert(stack.end(), arguments.begin(), arguments.end());
  }
}

}  // namespace lowtide::shim
