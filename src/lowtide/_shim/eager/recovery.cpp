// How absent values are rematerialised: calls are recomputed from their replay records, or bytes prefetched from the
// host.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "runtime.hpp"

namespace lowtide::shim {

using eager::NO_VALUE;

namespace {

// The program, in another thread, has released a storage that a recomputation was about to read.
struct LetGo {};

// Inside, an operator runs as it did below autograd and every mode.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard fallback{c10::DispatchKeySet({c10::DispatchKey::Fake, c10::DispatchKey::Python})};
};

// The storage of an output among the results: index, element.
c10::intrusive_ptr<Storage> result_at(const torch::jit::Stack& results, std::pair<std::int32_t, std::int32_t> place) {
  c10::intrusive_ptr<Storage> found;
  visit_tensors(results[static_cast<std::size_t>(place.first)], [&](const c10::TensorImpl& tensor, std::int32_t element) {
    if (element == place.second) found = tensor.unsafe_storage().getWeakStorageImpl().lock();
  });
  return found;
}

}  // namespace

c10::Storage Runtime::hold(ValueId value) {
  const Body& body = bodies_[value];
  if (body.aside != nullptr) return c10::Storage(body.aside);
  auto storage = body.hold();
  if (storage == nullptr || gates_.is_dropped(*storage)) throw LetGo{};
  return c10::Storage(std::move(storage));
}

void Runtime::enter(std::uint64_t name, Slice<ValueId> inputs, Slice<ValueId> read, Lock& lock) {
  if (manager_.enter(name, inputs, read)) return;
  bring(inputs, lock);
}

void Runtime::bring(Slice<ValueId> wanted, Lock& lock) {
  for (;;) {
    eager::Recovery recovery(manager_);
    recovery.begin(wanted);
    try {
      while (const eager::Job job = recovery.next()) {
        if (job.kind == eager::Job::Kind::recompute) {
          recompute(recovery, job.call, lock);
          look_for_thrashing(lock);
        } else
          fetch(recovery, job.value, lock);
      }
      return;
    } catch (const LetGo&) {  // what was pinned is gone: begin anew with what there is
      recovery.abandon();
      TORCH_INTERNAL_ASSERT(slab_.has_deaths(), "a value is pinned and has no bytes");
      take_deaths();
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      recovery.abandon();
      throw;
    }
  }
}

void Runtime::recompute(eager::Recovery& recovery, CallId id, Lock& lock) {
  const eager::Call& call = ledger_.call(id);
  const Closure& closure = closures_[call.closure];
  const std::string& name = closure.op->name;
  std::vector<c10::Storage> given;
  std::vector<eager::Consumed> copied;
  for (const eager::Input& input : call.inputs) given.push_back(hold(input.value));
  const std::vector<ValueId> before = std::exchange(running_, {});
  for (const eager::Input& input : call.inputs) running_.push_back(input.value);
  for (const eager::Consumed& c : call.consumed)
    if (recovery.over(static_cast<std::size_t>(c.output)) == NO_VALUE) copied.push_back(c);
  const std::vector<c10::Storage> originals = given;
  const bool is_clean = copied.size() == call.consumed.size();
  std::vector<Bytes> copied_B;
  for (const eager::Consumed& c : copied)
    copied_B.push_back(ledger_[call.inputs[static_cast<std::size_t>(c.input)].value].size_B);
  torch::jit::Stack results;
  Likeness like;
  std::optional<std::vector<Bytes>> asked;
  lock.unlock();
  try {
    const Below below;
    const Setting::At setting(closure.setting);
    lock.lock();
    like = likeness(closure);
    expect(like, {copied_B.data(), copied_B.size()});
    Meter meter(slab_, like.op != 0 && was_full());
    lock.unlock();
    const auto bytes_of = [&](std::int32_t i) { return given[static_cast<std::size_t>(i)]; };
    Bytes hole_B = 0;
    for (;;) {
      try {
        for (const eager::Consumed& c : copied) {
          c10::Storage& source = given[static_cast<std::size_t>(c.input)];
          source = c10::Storage(copy_of(*source.unsafeGetStorageImpl()));
        }
        rebuild(closure, bytes_of, results);
        std::optional<Draw::At> drawn;
        if (closure.draw) drawn.emplace(*closure.draw);
        meter.begin();
        closure.op->handle.redispatchBoxed(closure.keys, &results);
        if (meter.is_on()) asked = meter.end();
        break;
      } catch (const c10::OutOfMemoryError&) {
        lock.lock();
        results.clear();
        given = originals;
        running_.clear();
        hole_B = hole_for_another(hole_B, is_clean, name);
        for (const eager::Input& input : ledger_.call(id).inputs) running_.push_back(input.value);
        lock.unlock();
      }
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    running_ = before;
    throw;
  }
  lock.lock();
  running_ = before;
  if (asked) forecasts_.asked(like, std::move(*asked));
  take_back(recovery, id, results, given);
}

// What a recomputation made goes where it belongs; the rest is released.
void Runtime::take_back(eager::Recovery& recovery, CallId id, torch::jit::Stack& results,
                        std::vector<c10::Storage>& given) {
  const std::size_t count = ledger_.call(id).outputs.size();
  const auto places = closures_[ledger_.call(id).closure].outputs;
  std::vector<Bytes> offsets_B(count, 0);
  std::vector<c10::intrusive_ptr<Storage>> made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] = places[i].first < 0 ? given[static_cast<std::size_t>(-1 - places[i].first)].getWeakStorageImpl().lock()
                                  : result_at(results, places[i]);
  results.clear();
  given.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (!recovery.keeps(i)) continue;
    TORCH_INTERNAL_ASSERT(made[i] != nullptr, "an operator that was recomputed made less than before");
    const ValueId value = ledger_.call(id).outputs[i].value;
    const ValueId over = recovery.over(i);
    if (over != NO_VALUE) {
      made[i].reset();
      offsets_B[i] = bodies_.pass_on(over, value);
    } else {
      offsets_B[i] = bodies_.keep(value, std::move(made[i]));
    }
    if (offsets_B[i] == eager::NOWHERE) offsets_B[i] = 0;  // rematerialised outside the slab
  }
  made.clear();
  recovery.done({offsets_B.data(), offsets_B.size()});
}

void Runtime::fetch(eager::Recovery& recovery, ValueId value, Lock& lock) {
  const Bytes size_B = ledger_[value].size_B;
  running_.clear();
  slab_.set_side(End::low);
  c10::intrusive_ptr<Storage> storage;
  for (Bytes hole_B = 0; storage == nullptr;) {
    lock.unlock();
    try {
      storage = storage_over(c10::GetAllocator(c10::DeviceType::CPU)->allocate(static_cast<std::size_t>(size_B)), size_B);
      lock.lock();
    } catch (const c10::OutOfMemoryError&) {
      lock.lock();
      hole_B = hole_for_another(hole_B, true, "copy from the host");
    }
  }
  std::memcpy(storage->_mutable_data_ptr_no_checks().get(), bodies_[value].host.get(), static_cast<std::size_t>(size_B));
  bodies_[value].host.reset();
  Bytes offset_B = bodies_.keep(value, std::move(storage));
  if (offset_B == eager::NOWHERE) offset_B = 0;  // prefetched outside the slab
  recovery.done({&offset_B, 1});
}

c10::intrusive_ptr<Storage> Runtime::copy_of(const Storage& storage) {
  const std::size_t size = storage.nbytes();
  auto made = storage_over(c10::GetAllocator(c10::DeviceType::CPU)->allocate(size), static_cast<Bytes>(size));
  std::memcpy(made->_mutable_data_ptr_no_checks().get(),
              const_cast<Storage&>(storage)._mutable_data_ptr_no_checks().get(), size);
  return made;
}

void Runtime::commit(ValueId value, Lock& lock) {
  if (ledger_[value].is_leaf()) return;
  ledger_.pin(value);  // the program may release it meanwhile: it remains in the ledger all the same
  try {
    bring({&value, 1}, lock);
  } catch (...) {
    manager_.leave({&value, 1});
    throw;
  }
  manager_.commit(value);
  bodies_.label(value, bodies_[value].seen != nullptr);
  manager_.leave({&value, 1});
  manager_.leave({&value, 1});
}

void Runtime::settle_dependents(ValueId leaf, Lock& lock) {
  for (const ValueId value : ledger_.dependents(leaf))
    if (ledger_.holds(value) && ledger_[value].alive) commit(value, lock);
}

bool Runtime::send(ValueId value) {
  const auto size = static_cast<std::size_t>(ledger_[value].size_B);
  Body& body = bodies_[value];
  const auto storage = body.hold();
  if (storage == nullptr) return false;  // another thread has just released it
  body.host = std::make_unique<char[]>(size);
  std::memcpy(body.host.get(), storage->_mutable_data_ptr_no_checks().get(), size);
  release(value);
  return true;
}

}  // namespace lowtide::shim
