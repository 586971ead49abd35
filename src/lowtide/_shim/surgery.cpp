#include "surgery.hpp"

#include <cstring>
#include <stdexcept>

#include "allocator.hpp"
#include "guard.hpp"

namespace lowtide::shim {

namespace {

const char* const MOVED = "lowtide: this storage's bytes now belong to another one";

// The context of a dropped storage's empty pointer. It owns nothing; its deleter marks the storage as dropped.
char dropped_context;
void forget_dropped(void*) {}

c10::Device cpu() { return c10::Device(c10::DeviceType::CPU); }

c10::DataPtr nothing() { return {nullptr, &dropped_context, &forget_dropped, cpu()}; }

void require(const Storage& storage) {
  const std::string why = objection(storage);
  if (!why.empty()) throw std::invalid_argument(why);
}

void require_bytes(const Storage& storage) {
  require(storage);
  if (is_dropped(storage)) throw std::invalid_argument("the storage's bytes were dropped: restore it first");
}

// The old pointer leaves last: releasing it may run code of other libraries. From now on the storage grows by the
// allocator in force: what torch made in a copy or from a file asks another one.
void replace(Storage& storage, c10::DataPtr block) {
  storage.set_allocator(c10::GetAllocator(c10::DeviceType::CPU));
  c10::DataPtr old = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(std::move(block));
}

void take_away(Storage& storage, const std::string& message) {
  set_guard(storage, message);
  replace(storage, nothing());
}

void give(Storage& storage, c10::DataPtr block) {
  lift_guard(storage);
  replace(storage, std::move(block));
}

const c10::DataPtr& pointer(const Storage& storage) {
  return const_cast<Storage&>(storage)._mutable_data_ptr_no_checks();
}

}  // namespace

bool is_dropped(const Storage& storage) { return pointer(storage).get_deleter() == &forget_dropped; }

std::string objection(const Storage& storage) {
  const c10::DataPtr& data = pointer(storage);
  if (data.device().type() != c10::DeviceType::CPU) return "the storage is not on the CPU";
  if (storage.sym_nbytes().is_heap_allocated()) return "the storage's size is a symbol";
  if (!storage.resizable())
    return "the storage's bytes are shared (a numpy array, another process, or memory that torch did not allocate)";
  if (is_dropped(storage) || (data.get() == nullptr && storage.nbytes() == 0)) return "";
  if (data.get() == nullptr) return "the storage has a size but no bytes (resized, fake, or freed by somebody else)";
  if (!is_plain(data)) return "the storage's bytes are shared, copy-on-write, or not from torch's CPU allocator";
  return "";
}

void drop(Storage& storage, const std::string& message) {
  require_bytes(storage);
  take_away(storage, message);
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
  take_away(source, MOVED);
  give(target, std::move(block));
}

void move_into(Storage& storage, c10::DataPtr block) {
  require_bytes(storage);
  if (storage.nbytes() > 0) std::memcpy(block.get(), pointer(storage).get(), storage.nbytes());
  replace(storage, std::move(block));
}

}  // namespace lowtide::shim
