// Python's view of copy engines: conversions only. Bytes come as addresses, which the caller keeps alive until the event
// of their copy has happened. Whatever waits releases the interpreter lock.
#include "bind_copier.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "copier.hpp"

namespace nb = nanobind;

namespace lowtide {

namespace {

using Address = std::uintptr_t;
using Released = nb::call_guard<nb::gil_scoped_release>;

constexpr std::chrono::duration<double> GLANCE{0.05};

// Waits until the event has happened, whatever signals come.
void settle(const Event& event) {
  while (!event.wait_for(GLANCE)) {
  }
}

// The same; a signal's handler runs meanwhile, and what it raises ends the wait.
void wait(const Event& event) {
  for (;;) {
    {
      nb::gil_scoped_release released;
      if (event.wait_for(GLANCE)) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

void bind_copier(nb::module_& m) {
  nb::class_<Event>(m, "Event")
      .def(nb::init<>())
      .def("set", &Event::set, Released())
      .def_prop_ro("is_set", &Event::is_set)
      .def("settle", &settle, Released())
      .def("wait", &wait);
  nb::class_<Copier>(m, "Copier")
      .def(nb::init<double, double>(), nb::arg("rate_Bps") = 0.0, nb::arg("latency_s") = 0.0)
      .def("submit",
           [](Copier& c, Address target, Address source, std::size_t size_B, std::vector<EventRef> after) {
             return c.submit(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), size_B, std::move(after));
           },
           nb::arg("target"), nb::arg("source"), nb::arg("size_B"), nb::arg("after") = nb::make_tuple())
      .def_prop_ro("idle", &Copier::idle)
      .def("drain", &Copier::drain, Released())
      .def("stop", &Copier::stop, Released())
      .def_prop_ro("rate_Bps", &Copier::rate_Bps)
      .def("traffic", [](const Copier& c) {
        const Traffic now = c.traffic();
        return nb::make_tuple(now.jobs, now.bytes, now.busy_s);
      });
}

}  // namespace lowtide
