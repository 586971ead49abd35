#include "bind_slabs.hpp"

#include <c10/util/Exception.h>
#include <pybind11/stl.h>

#include <map>

#include "event_log.hpp"
#include "fast_calls.hpp"
#include "table.hpp"

namespace py = pybind11;

namespace lowtide::shim {

namespace {

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
  d["misplaced_allocations"] = tallies.misplaced_allocations;
  d["small"] = tallies.small;
  d["overflow"] = tallies.overflow;
  d["workers"] = tallies.workers;
  d["workers_B"] = tallies.workers_B;
  d["workers_peak_B"] = tallies.workers_peak_B;
  d["spills"] = tallies.spills;
  d["spilled_B"] = tallies.spilled_B;
  d["outside"] = tallies.outside;
  d["outside_B"] = tallies.outside_B;
  d["failures_for_capacity"] = tallies.failures_for_capacity;
  d["failures_for_contiguity"] = tallies.failures_for_contiguity;
  std::map<Name, Bytes> by_phase;
  for (const Block& block : slab.arena().blocks())
    by_phase[slab.keeps_values() ? 0 : asker_of(block.tag).phase] += block.reserved_B;
  py::dict phases;
  for (const auto& [phase, size_B] : by_phase) phases[py::str(text_of(phase))] = size_B;
  d["by_phase"] = phases;
  return d;
}

py::list blocks(const Handle& handle) {
  py::list found;
  for (const Block& block : handle.slab()->arena().blocks()) {
    const Asker asker = asker_of(handle.slab()->keeps_values() ? 0 : block.tag);
    found.append(py::make_tuple(block.offset_B, block.requested_B, block.reserved_B, text_of(asker.statement),
                                text_of(asker.phase), asker.worker));
  }
  return found;
}

// Offset, requested and reserved bytes, and value, by address.
py::list owners(const Handle& handle) {
  py::list found;
  for (const Block& block : handle.slab()->arena().blocks())
    found.append(py::make_tuple(block.offset_B, block.requested_B, block.reserved_B, block.tag & ~Slab::KEPT));
  return found;
}

// Negative: the block was kept.
std::vector<std::int64_t> take_deaths(const Handle& handle) {
  std::vector<std::int64_t> found;
  for (const std::uint64_t death : handle.slab()->take_deaths()) {
    const auto value = static_cast<std::int64_t>(death & ~Slab::KEPT);
    found.push_back((death & Slab::KEPT) != 0 ? -value : value);
  }
  return found;
}

py::list holes(const Handle& handle) {
  std::vector<std::pair<Bytes, Bytes>> found;
  handle.slab()->arena().visit_holes([&](Bytes lo_B, Bytes hi_B) { found.emplace_back(lo_B, hi_B); });
  return py::cast(found);
}

// Asks Python, for threads that are engaged alone: a worker would wait for a lock that its operator's thread may hold.
class PythonPressure final : public Pressure {
 public:
  explicit PythonPressure(py::object hook) : hook_(std::move(hook)) {}
  ~PythonPressure() override {
    const py::gil_scoped_acquire hold;
    hook_ = py::object();
  }
  bool relieve(Bytes size_B, bool worker) override {
    if (worker) return false;
    const py::gil_scoped_acquire hold;
    return hook_(size_B).cast<bool>();
  }

 private:
  py::object hook_;
};

void set_pressure(const Handle& handle, py::object hook) {
  std::shared_ptr<Pressure> pressure;
  if (!hook.is_none()) pressure = std::make_shared<PythonPressure>(std::move(hook));
  handle.slab()->set_pressure(std::move(pressure));
}

py::list misplaced_allocations(const Handle& handle) {
  static const char* const reasons[] = {"size", "occupied", "unexpected"};
  py::list found;
  for (const MisplacedAllocation& d : handle.slab()->misplaced_allocations())
    found.append(py::make_tuple(d.statement, text_of(d.name), d.size_B, reasons[static_cast<int>(d.reason)],
                                text_of(d.holder)));
  return found;
}

}  // namespace

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

void add_log(py::module_& m) {
  m.def("log_start", [] { return event_log().start(); });
  m.def("log_stop", [] {
    py::list found;
    for (const LoggedEvent& e : event_log().stop()) found.append(py::make_tuple(e.thread, e.address, e.size));
    return found;
  });
  m.def("is_logging", [] { return event_log().is_on(); });
}

py::class_<Handle> add_slabs(py::module_& m) {
  py::class_<Table, std::shared_ptr<Table>>(m, "Table", py::module_local())
      .def(py::init<std::vector<Bytes>, std::vector<Bytes>, std::vector<std::int64_t>, std::vector<std::string>, Bytes>(),
           py::arg("sizes_B"), py::arg("offsets_B"), py::arg("first"), py::arg("names"), py::arg("alignment_B") = 64)
      .def_property_readonly("height_B", &Table::height_B)
      .def_property_readonly("statements", &Table::statements)
      .def_property_readonly("entries", &Table::entries);
  py::class_<Handle> slab(m, "Slab", py::module_local());
  slab
      .def_property(
          "plan_top_B", [](const Handle& h) { return h.slab()->plan_top(); },
          [](const Handle& h, Bytes top_B) { h.slab()->set_plan_top(top_B); })
      .def_property(
          "persistent_B", [](const Handle& h) { return h.slab()->zone(); },
          [](const Handle& h, Bytes persistent_B) { h.slab()->set_place(persistent_B); })
      .def("in_use_within",
           [](const Handle& h, Bytes lo_B, Bytes hi_B) { return h.slab()->arena().in_use_within(lo_B, hi_B).in_use_B; })
      .def_property(
          "resting", [](const Handle& h) { return h.slab()->is_resting(); },
          [](const Handle& h, bool resting) { h.slab()->set_resting(resting); })
      .def_property(
          "strict", [](const Handle& h) { return h.slab()->is_strict(); },
          [](const Handle& h, bool strict) { h.slab()->set_strict(strict); })
      .def("set_phase", [](const Handle& h, const std::string& text) { h.slab()->set_phase(number_of(text)); })
      .def_property_readonly("troubles", [](const Handle& h) { return h.slab()->troubles(); })
      .def("stats", &stats)
      .def("blocks", &blocks)
      .def("misplaced_allocations", &misplaced_allocations)
      .def("owners", &owners)
      .def("holes", &holes)
      .def("own", [](const Handle& h, Bytes offset_B, std::uint64_t value, bool keeps) {
        return h.slab()->own(static_cast<char*>(h.slab()->base()) + offset_B, value | (keeps ? Slab::KEPT : 0));
      })
      .def("take_deaths", &take_deaths)
      .def_property_readonly("has_deaths", [](const Handle& h) { return h.slab()->has_deaths(); })
      .def("set_side", [](const Handle& h, bool high) { h.slab()->set_side(high ? End::high : End::low); })
      .def("meter", [](const Handle& h) { h.slab()->meter(); })
      .def("metered", [](const Handle& h) { return h.slab()->metered(); })
      .def("set_pressure", &set_pressure)
      .def("forget_misplaced_allocations", [](const Handle& h) { h.slab()->forget_misplaced_allocations(); })
      .def("reset_peaks", [](const Handle& h) { h.slab()->reset_peaks(); })
      .def("trim", [](const Handle& h) { return h.slab()->trim(); })
      .def("check", [](const Handle& h) { return h.slab()->arena().check(); })
      .def_property_readonly("engagements", [](const Handle& h) { return h.slab()->engagements(); })
      .def_property_readonly("is_open", [](const Handle& h) { return h.slab()->is_open(); })
      .def_property_readonly("base", [](const Handle& h) { return reinterpret_cast<std::uintptr_t>(h.slab()->base()); })
      .def("close", [](const Handle& h) { h.slab()->close(); });
  m.attr("SMALL_B") = SMALL_B;
  return slab;
}

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

