// Python's view of the shim: conversions only.
#include <c10/core/CPUAllocator.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <unordered_map>

#include "allocator.hpp"
#include "bind_slabs.hpp"
#include "bind_storages.hpp"
#include "fast_calls.hpp"
#include "gates.hpp"
#include "handle.hpp"
#include "slabs.hpp"
#include "thread.hpp"

namespace py = pybind11;
using namespace lowtide;
using namespace lowtide::shim;

namespace {

// Slides the blocks of these storages, given by offset, until a hole of need_B is there, if sliding can make one. The
// slides made, the requested bytes moved, and the hole's offset or -1.
py::tuple slide_for(const Handle& handle, Bytes need_B, const std::unordered_map<Bytes, std::uintptr_t>& movable) {
  Slab& slab = *handle.slab();
  auto* const base = static_cast<char*>(slab.base());
  std::unordered_map<Bytes, std::uintptr_t> left = movable;
  const Slide slid = slab.arena().slide_for(
      need_B, 0, slab.arena().capacity_B(), [&](const Block& block) { return left.count(block.offset_B) > 0; },
      [&](Bytes from_B, Bytes to_B, Bytes size_B) {
        std::memmove(base + to_B, base + from_B, static_cast<std::size_t>(size_B));
        rebase(storage_at(left.at(from_B)), base + to_B);
        return true;
      });
  return py::make_tuple(slid.moves, slid.moved_B, slid.hole_B);
}

// Allocates and releases without a tensor, `count` times, each time as the first allocation of the segment's first
// statement if there is a segment. The bytes that the last one took from the engaged slab; 0 where none is engaged.
// stock: asks torch's default allocator instead, whoever is engaged.
Bytes raw_cycles(std::size_t size, std::int64_t count, bool stock) {
  c10::Allocator* allocator = stock ? c10::GetDefaultCPUAllocator() : c10::GetAllocator(c10::DeviceType::CPU);
  Thread& thread = Thread::mine();
  Bytes taken_B = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (thread.run() != nullptr) thread.at(0);
    void* p = allocator->raw_allocate(size);
    if (i + 1 == count && thread.slab() != nullptr && thread.slab()->owns(p))
      taken_B = thread.slab()->arena().statistics().in_use_B;
    allocator->raw_deallocate(p);
  }
  return taken_B;
}

}  // namespace

PYBIND11_MODULE(_lowtide_shim, m) {
  m.doc() = "Torch's CPU memory in lowtide's arenas.";
  add_errors();
  add_slabs(m).def(py::init([](Bytes capacity_B, Bytes alignment_B, Bytes small_zone_B, Bytes persistent_B, bool all_threads,
                                 bool values) {
    return std::make_unique<Handle>(Slab::Options{capacity_B, alignment_B, small_zone_B, persistent_B, all_threads, values});
  }), py::arg("capacity_B"), py::arg("alignment_B"), py::arg("small_zone_B"), py::arg("persistent_B"), py::arg("all_threads"),
                    py::arg("values") = false);
  add_storages(m);
  m.def("drop_value", [](std::uintptr_t s, const std::string& message, const Handle& handle, std::uint64_t value) {
    drop(storage_at(s), message, *handle.slab(), value);
  });
  m.def("slide_for", &slide_for);
  if (!add_fast_calls(m.ptr(), &is_in_force)) throw py::error_already_set();
  m.attr("gates") = py::capsule(&gates(), GATES);
  m.def("install", &install);
  m.def("is_in_force", &is_in_force);
  m.def("raw_cycles", &raw_cycles);
  m.def("suspend", [] { Thread::mine().suspend(); });
  m.def("resume", [] { Thread::mine().resume(); });
  m.def("levels", [] { return Thread::mine().levels(); });
  add_log(m);
}
