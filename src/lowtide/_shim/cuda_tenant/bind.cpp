// Python's view of arenas inside torch's CUDA allocator: conversions only.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <pybind11/pybind11.h>

#include <unordered_map>

#include "bind_slabs.hpp"
#include "bind_storages.hpp"
#include "fast_calls.hpp"
#include "tenant.hpp"
#include "thread.hpp"

namespace py = pybind11;
using namespace lowtide;
using namespace lowtide::shim;

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

// Blocks that Python holds by their address.
std::unordered_map<std::uintptr_t, c10::DataPtr>& held() {
  static auto* const kept = new std::unordered_map<std::uintptr_t, c10::DataPtr>;
  return *kept;
}

}  // namespace

PYBIND11_MODULE(_lowtide_tenant, m) {
  m.doc() = "Arenas of lowtide's inside torch's CUDA memory.";
  add_errors();
  add_slabs(m).def(py::init([](Bytes capacity_B, Bytes alignment_B, Bytes small_zone_B, Bytes persistent_B, bool all_threads,
                               int device) {
    const int index = device < 0 ? c10::cuda::current_device() : device;
    return open_arena(Slab::Options{capacity_B, alignment_B, small_zone_B, persistent_B, all_threads, false}, index);
  }), py::arg("capacity_B"), py::arg("alignment_B"), py::arg("small_zone_B"), py::arg("persistent_B"), py::arg("all_threads"),
                   py::arg("device") = -1);
  add_storages(m);
  add_log(m);
  if (!add_fast_calls(m.ptr(), &tenant_is_active)) throw py::error_already_set();
  m.def("use_runtime", [](const std::string& library) { use(library.empty() ? loaded_runtime() : runtime_of(library)); });
  m.def("install", &install_tenant);
  m.def("is_active", &tenant_is_active);
  m.def("suspend", [] { Thread::mine().suspend(); });
  m.def("resume", [] { Thread::mine().resume(); });
  m.def("levels", [] { return Thread::mine().levels(); });
  m.def("settle", [](const Handle& arena, bool wait) {
    if (Device* device = device_of(*arena.slab())) device->settle(wait);
  });
  m.def("parked", [](const Handle& arena) {
    Device* device = device_of(*arena.slab());
    return device == nullptr ? 0 : device->parked();
  });
  m.def("waits", [](const Handle& arena) {
    Device* device = device_of(*arena.slab());
    return device == nullptr ? 0 : device->counts().waits;
  });
  // As torch asks, for whoever has no tensors: addresses and streams as numbers.
  m.def("allocate", [](std::size_t size_B) {
    c10::DataPtr block = torch_cuda::get()->allocate(size_B);
    const auto address = reinterpret_cast<std::uintptr_t>(block.get());
    held()[address] = std::move(block);
    return address;
  });
  m.def("release", [](std::uintptr_t address) { held().erase(address); });
  m.def("raw_allocate", [](std::size_t size_B) { return reinterpret_cast<std::uintptr_t>(torch_cuda::raw_alloc(size_B)); });
  m.def("raw_release", [](std::uintptr_t address) { torch_cuda::raw_delete(reinterpret_cast<void*>(address)); });
  m.def("record_stream", [](std::uintptr_t address, std::uintptr_t stream) {
    const c10::DataPtr& block = held().at(address);
    torch_cuda::recordStream(block, c10::cuda::CUDAStream(c10::Stream(c10::Stream::UNSAFE, block.device(),
                                                                      static_cast<c10::StreamId>(stream))));
  });
  m.def("base_of", [](std::uintptr_t address) {
    std::size_t size_B = 0;
    void* base = torch_cuda::getBaseAllocation(reinterpret_cast<void*>(address), &size_B);
    return py::make_tuple(reinterpret_cast<std::uintptr_t>(base), size_B);
  });
  m.def("share", [](std::uintptr_t address) { return torch_cuda::shareIpcHandle(reinterpret_cast<void*>(address)).offset; });
  m.def("largest_workspace_B", [](int device) {
    std::size_t largest = 0;
    torch_cuda::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
    return largest;
  });
}
