// Python's view of the GPU's arena: conversions only.
#include <pthread.h>
#include <pybind11/pybind11.h>

#include "bind_slabs.hpp"
#include "device.hpp"
#include "entries.hpp"
#include "fast_calls.hpp"
#include "slabs.hpp"
#include "thread.hpp"

namespace py = pybind11;
using namespace lowtide;
using namespace lowtide::shim;

namespace {

py::dict as_dict(const Count& count) {
  py::dict d;
  d["current"] = count.current;
  d["peak"] = count.peak;
  d["allocated"] = count.gained;
  d["freed"] = count.lost;
  return d;
}

py::object counts(int index) {
  Device* device = devices().alive(index);
  if (device == nullptr) return py::none();
  const DeviceCounts now = device->counts();
  const ArenaStatistics arena = device->slab().arena().statistics();
  py::dict d;
  d["blocks"] = as_dict(now.blocks);
  d["bytes"] = as_dict(now.bytes);
  d["requested"] = as_dict(now.requested);
  d["active"] = as_dict(now.active);
  d["active_bytes"] = as_dict(now.active_bytes);
  d["waits"] = now.waits;
  d["retries"] = now.retries;
  d["refusals"] = now.refusals;
  d["capacity_B"] = arena.capacity_B;
  d["holes"] = arena.holes;
  d["parked"] = device->parked();
  return d;
}

template <class Call>
void with_device(int index, Call call) {
  if (Device* device = devices().alive(index)) call(*device);
}

// Addresses of the functions that torch is given by address.
py::dict entries() {
  py::dict d;
  const auto add = [&](const char* name, auto* function) { d[name] = reinterpret_cast<std::uintptr_t>(function); };
  add("malloc", &lowtide_cuda_malloc);
  add("free", &lowtide_cuda_free);
  add("record_stream", &lowtide_cuda_record_stream);
  add("reset", &lowtide_cuda_reset);
  add("base", &lowtide_cuda_base);
  add("begin_pool", &begin_pool);
  return d;
}

}  // namespace

PYBIND11_MODULE(_lowtide_cuda, m) {
  m.doc() = "Torch's GPU memory in lowtide's arenas.";
  add_errors();
  add_slabs(m);
  add_log(m);
  if (!add_fast_calls(m.ptr(), [] { return true; })) throw py::error_already_set();
  ::pthread_atfork([] { devices().before_fork(); }, [] { devices().after_fork(false); },
                   [] { devices().after_fork(true); });
  m.def("use_runtime", [](const std::string& library) { use(library.empty() ? loaded_runtime() : runtime_of(library)); });
  m.def("set_budget", [](int device, Bytes size_B, double share, Bytes small_zone_B) {
    devices().set_budget(device, {size_B, share, small_zone_B});
  });
  m.def("entries", &entries);
  m.def("is_alive", [](int device) { return devices().alive(device) != nullptr; });
  m.def("slab", [](int device) { return std::make_unique<Handle>(devices().at(device).slab()); });
  m.def("counts", &counts);
  m.def("settle", [](int device, bool wait) { with_device(device, [=](Device& d) { d.settle(wait); }); });
  m.def("reset_peaks", [](int device) { with_device(device, [](Device& d) { d.reset_peaks(); }); });
  m.def("reset_sums", [](int device) { with_device(device, [](Device& d) { d.reset_sums(); }); });
  m.def("suspend", [] { Thread::mine().suspend(); });
  m.def("resume", [] { Thread::mine().resume(); });
  // As torch calls them; streams by their number.
  m.def("allocate", [](Bytes size_B, int device, std::uintptr_t stream) {
    void* p = lowtide_cuda_malloc(size_B, device, reinterpret_cast<Stream>(stream));
    return reinterpret_cast<std::uintptr_t>(p);
  });
  m.def("release", [](std::uintptr_t p, std::uintptr_t stream) {
    lowtide_cuda_free(reinterpret_cast<void*>(p), 0, 0, reinterpret_cast<Stream>(stream));
  });
  m.def("use", [](std::uintptr_t p, std::uintptr_t stream) {
    lowtide_cuda_record_stream(reinterpret_cast<void*>(p), reinterpret_cast<Stream>(stream));
  });
}
