// Storages that come from elsewhere, and the zone of persistent ones.
//
// Those that may be moved are brought into the slab, parameters to its top, which grows as they come. Those that may
// not are left in place, and the slab has a copy, which is compared whenever an operator reads them: others may write
// there.
#include <c10/util/Exception.h>

#include "runtime.hpp"

namespace lowtide::shim {

using eager::NO_VALUE;
using eager::NOWHERE;

namespace {

constexpr Bytes BLOCKING = 4;  // times its size: more is not moved for a new persistent place

}  // namespace

ValueId Runtime::value_of(const c10::TensorImpl& tensor) {
  Storage* storage = storage_of(tensor);
  const ValueId known = bodies_.find(storage);
  if (known != NO_VALUE || storage->nbytes() == 0) return known;
  const bool stays = is_parameter(tensor);
  const ValueId value = meet(*storage, stays);
  diary_.note("leaf", {}, {}, {{ledger_[value].serial, ledger_[value].size_B}});
  if (stays) {
    bodies_[value].parameter = true;
    newcomers_.emplace_back(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
        const_cast<c10::TensorImpl*>(&tensor)));
  }
  return value;
}

ValueId Runtime::meet(Storage& storage, bool zone) {
  const auto size_B = static_cast<Bytes>(storage.nbytes());
  c10::intrusive_ptr<Storage> aside;
  if (!gates_.objection(storage).empty()) {  // bytes in the arena may be shared as well: a look at them from numpy
    aside = storage_over(capacity_for(size_B), size_B);
    if (bodies_.offset_of(storage) == NOWHERE) statistics_.foreign_B += size_B;
  } else if (bodies_.offset_of(storage) == NOWHERE) {
    statistics_.foreign_B += size_B;
    if (!(zone && take_in(storage))) gates_.move_into(storage, capacity_for(size_B));
  }
  const Storage& block = aside != nullptr ? *aside : storage;
  const ValueId value = ledger_.leaf(size_B, bodies_.offset_of(block), 0, zone);
  if (aside != nullptr)
    bodies_.show_outside(value, storage, std::move(aside));
  else
    bodies_.show(value, storage, true);
  return value;
}

// A leaf of what an operator made that cannot be recomputed.
ValueId Runtime::keep(Storage& storage) {
  const bool comes_from_elsewhere = bodies_.offset_of(storage) == NOWHERE || !gates_.objection(storage).empty();
  const ValueId value = comes_from_elsewhere ? meet(storage, false)
                                             : ledger_.leaf(static_cast<Bytes>(storage.nbytes()), bodies_.offset_of(storage));
  if (!comes_from_elsewhere) bodies_.show(value, storage, true);
  bodies_[value].stepped = is_stepping();
  return value;
}

// Others have written to a storage: what was computed from it keeps the copy, and it is met anew. What is persistent
// is the same value afterwards, as if an operator had written there.
ValueId Runtime::renew(ValueId value, Lock& lock) {
  const std::int64_t serial = ledger_[value].serial;
  const auto storage = bodies_[value].weak.lock();
  if (ledger_[value].zone || ledger_[value].pins > 0) {
    settle_dependents(value, lock);  // from the copy, which is as they read it
    bodies_.copy_anew(value);
    diary_.note("wrote", "elsewhere", {serial}, {{serial, 0}});
    return value;
  }
  if (bodies_.offset_of(*storage) == NOWHERE) statistics_.foreign_B -= ledger_[value].size_B;  // it is counted again
  diary_.note("died", {}, {serial});
  bodies_.leave_outside(value);
  manager_.died(value);
  const ValueId renewed = meet(*storage, false);
  diary_.note("leaf", {}, {}, {{ledger_[renewed].serial, ledger_[renewed].size_B}});
  return renewed;
}

c10::DataPtr Runtime::capacity_for(Bytes size_B) {
  slab_.set_side(End::high);
  c10::DataPtr block = gates_.block(slab_, size_B);
  if (block.get() != nullptr) return block;
  make_free(size_B);
  block = gates_.block(slab_, size_B);
  if (block.get() == nullptr) refuse(size_B, "");
  return block;
}

void Runtime::make_free(Bytes size_B) {
  sweep();
  const bool made = manager_.make_free(size_B);
  moving_.clear();
  if (!made && !make_hole(size_B)) refuse(size_B, "");
}

// The persistent zone

void Runtime::admit(ValueId value) {
  ledger_.set_place(value);
  if (!may_move(value) || ledger_[value].offset_B >= persistent_lo()) return;
  const auto storage = bodies_[value].hold();
  if (storage == nullptr || !take_in(*storage)) return;
  bodies_.label(value, true);
  ledger_.move(value, bodies_.offset_of(*storage));
}

bool Runtime::take_in(Storage& storage) {
  const auto size_B = static_cast<Bytes>(storage.nbytes());
  c10::DataPtr block = gates_.zone(slab_, size_B);
  if (block.get() == nullptr && grow_persistent(capacity_.reserved_for(size_B))) block = gates_.zone(slab_, size_B);
  if (block.get() == nullptr) return false;
  gates_.move_into(storage, std::move(block));
  return true;
}

bool Runtime::grow_persistent(Bytes size_B) {
  const Bytes before_B = slab_.zone(), old_lo_B = persistent_lo(), lo_B = old_lo_B - size_B;
  if (lo_B < 0) return false;
  const auto blocks = slab_.arena().blocks(lo_B, old_lo_B);
  Bytes blocking_B = 0;
  for (const Block& block : blocks) blocking_B += block.reserved_B;
  if (blocking_B > BLOCKING * size_B) return false;
  gates_.set_place(slab_, before_B + size_B);
  if (!blocks.empty()) slab_.set_side(End::low);
  for (const Block& block : blocks) {
    const ValueId value = eager::value_of(block.tag);
    if (value == NO_VALUE || !may_move(value)) continue;
    const auto storage = bodies_[value].hold();
    c10::DataPtr elsewhere = gates_.block(slab_, ledger_[value].size_B);
    if (storage == nullptr || elsewhere.get() == nullptr) continue;
    gates_.move_into(*storage, std::move(elsewhere));
    ledger_.move(value, bodies_.offset_of(*storage));
  }
  return true;
}

void Runtime::bring_in(const at::Tensor& tensor) {
  Lock lock(mutex_);
  take_deaths();
  if (!has_cpu_bytes(*tensor.unsafeGetTensorImpl())) return;
  Storage& storage = *storage_of(*tensor.unsafeGetTensorImpl());
  if (storage.nbytes() == 0) return;
  const ValueId known = bodies_.find(&storage);
  if (known == NO_VALUE) {
    if (is_parameter(*tensor.unsafeGetTensorImpl()))
      value_of(*tensor.unsafeGetTensorImpl());
    else
      diary_.note("leaf", {}, {}, {{ledger_[meet(storage, true)].serial, static_cast<Bytes>(storage.nbytes())}});
  } else if (!ledger_[known].zone) {
    commit(known, lock);
    admit(known);
  }
  tell(lock);
}

void Runtime::gradient_landed(const at::Tensor& gradient) {
  Lock lock(mutex_);
  take_deaths();
  if (!has_cpu_bytes(*gradient.unsafeGetTensorImpl())) return;
  const ValueId value = value_of(*gradient.unsafeGetTensorImpl());
  if (value == NO_VALUE) return;
  commit(value, lock);
  admit(value);
}

void Runtime::reach(const at::Tensor& tensor, bool for_good) {
  Lock lock(mutex_);
  take_deaths();
  if (!has_cpu_bytes(*tensor.unsafeGetTensorImpl())) return;
  ValueId value = bodies_.find(storage_of(*tensor.unsafeGetTensorImpl()));
  const bool is_index = c10::isIntegralType(tensor.scalar_type(), true);
  if (value == NO_VALUE && for_good && is_index) value = value_of(*tensor.unsafeGetTensorImpl());
  if (value == NO_VALUE) return;
  if (for_good) {
    commit(value, lock);
    bodies_[value].fixed = true;
  } else if (!ledger_[value].is_resident()) {
    enter(0, {&value, 1}, {&value, 1}, lock);
    manager_.leave({&value, 1});
  }
}

void Runtime::write(const at::Tensor& tensor) {
  Lock lock(mutex_);
  take_deaths();
  if (!has_cpu_bytes(*tensor.unsafeGetTensorImpl())) return;
  const ValueId value = bodies_.find(storage_of(*tensor.unsafeGetTensorImpl()));
  if (value == NO_VALUE) return;
  commit(value, lock);
  settle_dependents(value, lock);
}

// Whoever gets at the bytes may write there unseen. What was computed from them keeps a copy; from now on the storage
// is met like any other that is shared.
void Runtime::share(const at::Tensor& tensor) {
  Lock lock(mutex_);
  take_deaths();
  if (!has_bytes(*tensor.unsafeGetTensorImpl())) return;
  Storage& storage = *storage_of(*tensor.unsafeGetTensorImpl());
  const ValueId value = bodies_.find(&storage);
  if (value != NO_VALUE && bodies_[value].aside == nullptr) {
    commit(value, lock);
    c10::intrusive_ptr<Storage> copy;
    if (!ledger_[value].readers.empty() || ledger_[value].pins > 0) {
      const Bytes size_B = ledger_[value].size_B;
      copy = storage_over(capacity_for(size_B), size_B);
    }
    diary_.note("died", {}, {ledger_[value].serial});
    bodies_.part(value, std::move(copy));
    if (bodies_[value].own != nullptr) ledger_.move(value, bodies_.offset_of(*bodies_[value].own));
    manager_.died(value);
  }
  storage.set_resizable(false);  // as torch says it of what numpy sees
}

}  // namespace lowtide::shim
