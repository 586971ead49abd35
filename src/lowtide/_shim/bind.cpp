// Python's view of the shim: conversions only.
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <tuple>

#include "allocator.hpp"
#include "event_log.hpp"
#include "fast_calls.hpp"
#include "handle.hpp"
#include "slabs.hpp"
#include "surgery.hpp"
#include "thread.hpp"

namespace py = pybind11;
using namespace lowtide;
using namespace lowtide::shim;

namespace {

// Places that are no offset.
constexpr Bytes GENERAL = -1;
constexpr Bytes HOME = -2;

Storage& storage_at(std::uintptr_t address) { return *reinterpret_cast<Storage*>(address); }

// A fresh block, or an empty pointer where there is no room. No handle: from the stock allocator.
c10::DataPtr block_at(const Handle* handle, Bytes where_B, Bytes size_B) {
  if (handle == nullptr) return allocate_outside(static_cast<std::size_t>(size_B));
  Slab& slab = *handle->slab();
  void* p = where_B == GENERAL ? slab.serve(size_B, nullptr)
            : where_B == HOME  ? slab.serve_home(size_B)
                               : slab.serve_at(where_B, size_B);
  return p == nullptr ? c10::DataPtr() : adopt(p, size_B);
}

bool restore_at(std::uintptr_t storage, const Handle* handle, Bytes where_B) {
  const auto size_B = static_cast<Bytes>(storage_at(storage).nbytes());
  c10::DataPtr block = block_at(handle, where_B, size_B);
  if (block == nullptr && size_B > 0) return false;
  restore(storage_at(storage), std::move(block));
  return true;
}

bool relocate(std::uintptr_t storage, const Handle* handle, Bytes where_B) {
  const std::string why = objection(storage_at(storage));
  if (!why.empty()) throw std::invalid_argument(why);
  const auto size_B = static_cast<Bytes>(storage_at(storage).nbytes());
  if (size_B == 0) return true;
  c10::DataPtr block = block_at(handle, where_B, size_B);
  if (block == nullptr) return false;
  move_into(storage_at(storage), std::move(block));
  return true;
}

bool fill_at(std::uintptr_t storage, Bytes size_B, const Handle& handle, Bytes where_B) {
  c10::DataPtr block = block_at(&handle, where_B, size_B);
  if (block == nullptr) return false;
  fill(storage_at(storage), std::move(block), size_B);
  return true;
}

// Offset in the handle's slab, or -1: elsewhere, or dropped.
Bytes offset_in(std::uintptr_t storage, const Handle& handle) {
  const void* p = storage_at(storage)._mutable_data_ptr_no_checks().get();
  return p != nullptr && slabs().owner_of(p) == handle.slab() ? handle.slab()->offset_of(p) : -1;
}

py::dict stats(const Handle& handle) {
  Slab& slab = *handle.slab();
  const ArenaStatistics now = slab.arena().statistics();
  const Tallies tallies = slab.tallies();
  py::dict d;
  d["capacity_B"] = now.capacity_B;
  d["in_use_B"] = now.in_use_B;
  d["requested_B"] = now.requested_B;
  d["peak_B"] = now.peak_in_use_B;
  d["peak_requested_B"] = now.peak_requested_B;
  d["low_reach_B"] = now.low_high_B;
  d["top_reach_B"] = now.top_depth_B;
  d["high_water_B"] = now.high_water_B;
  d["largest_hole_B"] = now.largest_hole_B;
  d["blocks"] = now.blocks;
  d["holes"] = now.holes;
  d["requests"] = tallies.requests;
  d["planned_hits"] = tallies.planned_hits;
  d["planned_misses"] = tallies.planned_misses;
  d["departures"] = tallies.departures;
  d["small"] = tallies.small;
  d["overflow"] = tallies.overflow;
  d["workers"] = tallies.workers;
  d["workers_B"] = tallies.workers_B;
  d["workers_peak_B"] = tallies.workers_peak_B;
  d["spills"] = tallies.spills;
  d["spilled_B"] = tallies.spilled_B;
  d["outside"] = tallies.outside;
  d["outside_B"] = tallies.outside_B;
  d["failures_for_room"] = tallies.failures_for_room;
  d["failures_for_contiguity"] = tallies.failures_for_contiguity;
  std::map<Name, Bytes> by_phase;
  for (const Block& block : slab.arena().blocks()) by_phase[asker_of(block.tag).phase] += block.reserved_B;
  py::dict phases;
  for (const auto& [phase, size_B] : by_phase) phases[py::str(text_of(phase))] = size_B;
  d["by_phase"] = phases;
  return d;
}

py::list blocks(const Handle& handle) {
  py::list found;
  for (const Block& block : handle.slab()->arena().blocks()) {
    const Asker asker = asker_of(block.tag);
    found.append(py::make_tuple(block.offset_B, block.requested_B, block.reserved_B, text_of(asker.statement),
                                text_of(asker.phase), asker.worker));
  }
  return found;
}

py::list departures(const Handle& handle) {
  static const char* const reasons[] = {"size", "occupied", "unexpected"};
  py::list found;
  for (const Departure& d : handle.slab()->departures())
    found.append(py::make_tuple(d.statement, text_of(d.name), d.size_B, reasons[static_cast<int>(d.reason)],
                                text_of(d.holder)));
  return found;
}

py::list events_of_log() {
  py::list found;
  for (const Event& e : event_log().stop()) found.append(py::make_tuple(e.thread, e.address, e.size));
  return found;
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

void add_errors() {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const c10::OutOfMemoryError& error) {
      const py::object type = py::module_::import("torch").attr("OutOfMemoryError");
      PyErr_SetString(type.ptr(), error.what_without_backtrace());
    } catch (const c10::Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
}

void add_arenas(py::module_& m) {
  py::class_<Table, std::shared_ptr<Table>>(m, "Table")
      .def(py::init<std::vector<Bytes>, std::vector<Bytes>, std::vector<std::int64_t>, std::vector<std::string>, Bytes>(),
           py::arg("sizes_B"), py::arg("offsets_B"), py::arg("first"), py::arg("names"), py::arg("alignment_B") = 64)
      .def_property_readonly("height_B", &Table::height_B)
      .def_property_readonly("statements", &Table::statements)
      .def_property_readonly("entries", &Table::entries);
  py::class_<Handle>(m, "Slab")
      .def(py::init([](Bytes capacity_B, Bytes alignment_B, Bytes small_zone_B, Bytes home_B, bool all_threads) {
        return std::make_unique<Handle>(Slab::Options{capacity_B, alignment_B, small_zone_B, home_B, all_threads});
      }))
      .def_property(
          "plan_top_B", [](const Handle& h) { return h.slab()->plan_top(); },
          [](const Handle& h, Bytes top_B) { h.slab()->set_plan_top(top_B); })
      .def_property(
          "home_B", [](const Handle& h) { return h.slab()->home(); },
          [](const Handle& h, Bytes home_B) { h.slab()->set_home(home_B); })
      .def("in_use_within",
           [](const Handle& h, Bytes lo_B, Bytes hi_B) { return h.slab()->arena().in_use_within(lo_B, hi_B).in_use_B; })
      .def_property(
          "resting", [](const Handle& h) { return h.slab()->is_resting(); },
          [](const Handle& h, bool resting) { h.slab()->set_resting(resting); })
      .def_property(
          "strict", [](const Handle& h) { return h.slab()->is_strict(); },
          [](const Handle& h, bool strict) { h.slab()->set_strict(strict); })
      .def("set_phase", [](const Handle& h, const std::string& text) { h.slab()->set_phase(number_of(text)); })
      .def("stats", &stats)
      .def("blocks", &blocks)
      .def("departures", &departures)
      .def("forget_departures", [](const Handle& h) { h.slab()->forget_departures(); })
      .def("reset_peaks", [](const Handle& h) { h.slab()->reset_peaks(); })
      .def("trim", [](const Handle& h) { return h.slab()->trim(); })
      .def("check", [](const Handle& h) { return h.slab()->arena().check(); })
      .def_property_readonly("engagements", [](const Handle& h) { return h.slab()->engagements(); })
      .def_property_readonly("is_open", [](const Handle& h) { return h.slab()->is_open(); })
      .def_property_readonly("base", [](const Handle& h) { return reinterpret_cast<std::uintptr_t>(h.slab()->base()); })
      .def("close", [](const Handle& h) { h.slab()->close(); });
  m.attr("GENERAL") = GENERAL;
  m.attr("HOME") = HOME;
  m.attr("SMALL_B") = SMALL_B;
}

void add_storages(py::module_& m) {
  m.def("drop", [](std::uintptr_t s, const std::string& message) { drop(storage_at(s), message); });
  m.def("restore", [](std::uintptr_t s) { restore(storage_at(s), allocate(storage_at(s).nbytes())); });
  m.def("restore_at", &restore_at);
  m.def("steal", [](std::uintptr_t target, std::uintptr_t source) { steal(storage_at(target), storage_at(source)); });
  m.def("relocate", &relocate);
  m.def("fill_at", &fill_at);
  m.def("is_dropped", [](std::uintptr_t s) { return is_dropped(storage_at(s)); });
  m.def("objection", [](std::uintptr_t s) { return objection(storage_at(s)); });
  m.def("offset_in", &offset_in);
  m.def("use_count", [](std::uintptr_t s) { return c10::raw::intrusive_ptr::use_count(&storage_at(s)); });
}

}  // namespace

namespace lowtide::shim {

Slab* slab_of(PyObject* object) {
  try {
    return py::handle(object).cast<const Handle&>().slab();
  } catch (const py::cast_error&) {
    throw std::invalid_argument("this is no arena");
  }
}

std::shared_ptr<const Table> table_of(PyObject* object) {
  try {
    return py::handle(object).cast<std::shared_ptr<Table>>();
  } catch (const py::cast_error&) {
    throw std::invalid_argument("this is no table of places");
  }
}

}  // namespace lowtide::shim

PYBIND11_MODULE(_lowtide_shim, m) {
  m.doc() = "Torch's CPU memory in lowtide's arenas.";
  add_errors();
  add_arenas(m);
  add_storages(m);
  if (!add_fast_calls(m.ptr())) throw py::error_already_set();
  m.def("install", &install);
  m.def("is_in_force", &is_in_force);
  m.def("raw_cycles", &raw_cycles);
  m.def("suspend", [] { Thread::mine().suspend(); });
  m.def("resume", [] { Thread::mine().resume(); });
  m.def("levels", [] { return Thread::mine().levels(); });
  m.def("log_start", [] { return event_log().start(); });
  m.def("log_stop", &events_of_log);
  m.def("is_logging", [] { return event_log().is_on(); });
}
