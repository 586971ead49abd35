#include "surgery.hpp"

#include <c10/core/CPUAllocator.h>

#include <memory>
#include <stdexcept>

#include "guard.hpp"
#include "slabs.hpp"
#include "torch_memory.hpp"

namespace lowtide::shim {

namespace {

const char* const MOVED = "lowtide: this storage's bytes now belong to another one";

// Who wants to know when a dropped storage dies.
struct Mourner {
  Slab* slab;  // never destroyed
  std::uint64_t value;
};

// The context of a dropped storage's empty pointer: a Mourner, or this, which owns nothing. Its deleter marks the
// storage as dropped.
char dropped_context;
void forget_dropped(void* context) {
  if (context == &dropped_context) return;
  const std::unique_ptr<Mourner> mourner(static_cast<Mourner*>(context));
  if (mourner->value != 0) mourner->slab->report_death(mourner->value);
}

c10::DataPtr nothing(const Storage& storage) { return {nullptr, &dropped_context, &forget_dropped, storage.device()}; }

void require(const Storage& storage) {
  const std::string why = objection(storage);
  if (!why.empty()) throw std::invalid_argument(why);
}

void require_bytes(const Storage& storage) {
  require(storage);
  if (is_dropped(storage)) throw std::invalid_argument("the storage's bytes were dropped: restore it first");
}

// What the pointer holds leaves its storage without having died.
void disown(const c10::DataPtr& data) {
  if (data.get_deleter() == &forget_dropped) {
    if (data.get_context() != &dropped_context) static_cast<Mourner*>(data.get_context())->value = 0;
  } else if (Slab* slab = data.get() == nullptr ? nullptr : slabs().owner_of(data.get())) {
    slab->own(data.get(), 0);
  }
}

// The old pointer leaves last: releasing it may run code of other libraries. From now on the storage grows by the
// active allocator: what torch made in a copy or from a file asks another one.
void replace(Storage& storage, c10::DataPtr block) {
  storage.set_allocator(torch_allocator());
  c10::DataPtr old = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(std::move(block));
  disown(old);
}

void take_away(Storage& storage, const std::string& message, c10::DataPtr left) {
  set_guard(storage, message);
  replace(storage, std::move(left));
}

void give(Storage& storage, c10::DataPtr block) {
  lift_guard(storage);
  replace(storage, std::move(block));
}

// The value that lay at one place lies at the other now.
void hand_down(const void* from, const void* to) {
  Slab* slab = from == nullptr || to == nullptr ? nullptr : slabs().owner_of(from);
  if (slab == nullptr || !slab->keeps_values()) return;
  if (Slab* other = slabs().owner_of(to)) other->own(to, slab->owner_at(from));
}

const c10::DataPtr& pointer(const Storage& storage) {
  return const_cast<Storage&>(storage)._mutable_data_ptr_no_checks();
}

}  // namespace

bool is_dropped(const Storage& storage) { return pointer(storage).get_deleter() == &forget_dropped; }

std::string objection(const Storage& storage) {
  const c10::DataPtr& data = pointer(storage);
  if (data.device().type() != device_type()) return std::string("the storage is not on the ") + device_words();
  if (storage.sym_nbytes().is_heap_allocated()) return "the storage's size is a symbol";
  if (!storage.resizable())
    return "the storage's bytes are shared (a numpy array, another process, or memory that torch did not allocate)";
  if (is_dropped(storage) || (data.get() == nullptr && storage.nbytes() == 0)) return "";
  if (data.get() == nullptr) return "the storage has a size but no bytes (resized, fake, or freed by somebody else)";
  if (!is_plain(data)) return "the storage's bytes are shared, copy-on-write, or not from torch's allocator";
  return "";
}

void drop(Storage& storage, const std::string& message) {
  require_bytes(storage);
  take_away(storage, message, nothing(storage));
}

void drop(Storage& storage, const std::string& message, Slab& slab, std::uint64_t value) {
  require_bytes(storage);
  take_away(storage, message, {nullptr, new Mourner{&slab, value}, &forget_dropped, storage.device()});
}

void restore(Storage& storage, c10::DataPtr block) {
  require(storage);
  if (!is_dropped(storage)) throw std::invalid_argument("the storage was not dropped");
  give(storage, std::move(block));
}

void fill(Storage& storage, c10::DataPtr block, Bytes size_B) {
  require_bytes(storage);
  if (storage.nbytes() != 0) throw std::invalid_argument("the storage has bytes already");
  replace(storage, std::move(block));
  storage.set_nbytes(static_cast<std::size_t>(size_B));
}

void steal(Storage& target, Storage& source) {
  require(target);
  require_bytes(source);
  if (&target == &source) throw std::invalid_argument("a storage cannot take its own bytes");
  if (target.nbytes() != source.nbytes()) throw std::invalid_argument("the storages differ in size");
  c10::DataPtr block = std::move(source._mutable_data_ptr_no_checks());
  disown(block);
  take_away(source, MOVED, nothing(source));
  give(target, std::move(block));
}

void move_into(Storage& storage, c10::DataPtr block) {
  require_bytes(storage);
  if (storage.nbytes() > 0) copy_bytes(block.get(), pointer(storage).get(), storage.nbytes());
  hand_down(pointer(storage).get(), block.get());
  replace(storage, std::move(block));
}

void rebase(Storage& storage, void* p) {
  c10::DataPtr old = std::move(storage._mutable_data_ptr_no_checks());
  c10::profiledCPUMemoryReporter().Delete(old.get());
  c10::profiledCPUMemoryReporter().New(p, storage.nbytes());
  storage.set_data_ptr_noswap({p, p, old.get_deleter(), storage.device()});
  old.release_context();
}

}  // namespace lowtide::shim
