#include "bind_storages.hpp"

#include "handle.hpp"
#include "slabs.hpp"
#include "torch_memory.hpp"

namespace lowtide::shim {

namespace {

// A fresh block, or an empty pointer where it does not fit. No handle: from the stock allocator.
c10::DataPtr block_at(const Handle* handle, Bytes where_B, Bytes size_B, c10::Device device) {
  if (handle == nullptr) return allocate_outside(static_cast<std::size_t>(size_B), device);
  void* p = take_place(*handle->slab(), where_B, size_B);
  return p == nullptr ? c10::DataPtr() : adopt(p, size_B);
}

bool restore_at(std::uintptr_t storage, const Handle* handle, Bytes where_B) {
  const auto size_B = static_cast<Bytes>(storage_at(storage).nbytes());
  c10::DataPtr block = block_at(handle, where_B, size_B, storage_at(storage).device());
  if (block == nullptr && size_B > 0) return false;
  restore(storage_at(storage), std::move(block));
  return true;
}

bool relocate(std::uintptr_t storage, const Handle* handle, Bytes where_B) {
  const std::string why = objection(storage_at(storage));
  if (!why.empty()) throw std::invalid_argument(why);
  const auto size_B = static_cast<Bytes>(storage_at(storage).nbytes());
  if (size_B == 0) return true;
  c10::DataPtr block = block_at(handle, where_B, size_B, storage_at(storage).device());
  if (block == nullptr) return false;
  move_into(storage_at(storage), std::move(block));
  return true;
}

bool fill_at(std::uintptr_t storage, Bytes size_B, const Handle& handle, Bytes where_B) {
  c10::DataPtr block = block_at(&handle, where_B, size_B, storage_at(storage).device());
  if (block == nullptr) return false;
  fill(storage_at(storage), std::move(block), size_B);
  return true;
}

// Gives a storage of 0 bytes the block that was left when another one's storage died.
void take_over(std::uintptr_t storage, Bytes size_B, const Handle& handle, Bytes offset_B) {
  fill(storage_at(storage), adopt(static_cast<char*>(handle.slab()->base()) + offset_B, size_B), size_B);
}

// Offset in the handle's slab, or -1: elsewhere, or dropped.
Bytes offset_in(std::uintptr_t storage, const Handle& handle) {
  const void* p = storage_at(storage)._mutable_data_ptr_no_checks().get();
  return p != nullptr && slabs().owner_of(p) == handle.slab() ? handle.slab()->offset_of(p) : -1;
}

}  // namespace

void add_storages(pybind11::module_& m) {
  m.attr("GENERAL") = GENERAL;
  m.attr("PERSISTENT") = PERSISTENT;
  m.def("drop", [](std::uintptr_t s, const std::string& message) { drop(storage_at(s), message); });
  m.def("restore", [](std::uintptr_t s) { restore(storage_at(s), allocate(storage_at(s).nbytes())); });
  m.def("restore_at", &restore_at);
  m.def("steal", [](std::uintptr_t target, std::uintptr_t source) { steal(storage_at(target), storage_at(source)); });
  m.def("relocate", &relocate);
  m.def("fill_at", &fill_at);
  m.def("take_over", &take_over);
  m.def("is_dropped", [](std::uintptr_t s) { return is_dropped(storage_at(s)); });
  m.def("objection", [](std::uintptr_t s) { return objection(storage_at(s)); });
  m.def("offset_in", &offset_in);
  m.def("use_count", [](std::uintptr_t s) { return c10::raw::intrusive_ptr::use_count(&storage_at(s)); });
}

}  // namespace lowtide::shim
