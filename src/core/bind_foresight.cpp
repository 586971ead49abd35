// Python's view of rehearsals: conversions only. A rehearsal releases the interpreter lock.
#include "bind_foresight.hpp"

#include <nanobind/stl/vector.h>

#include <vector>

#include "eager/rehearsal.hpp"

namespace nb = nanobind;

namespace lowtide {

using namespace eager;

void bind_foresight(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Rehearsed>(m, "Rehearsed")
      .def_ro("unguided_ns", &Rehearsed::unguided_ns)
      .def_ro("candidates", &Rehearsed::candidates)
      .def_prop_ro("spent_ns", [](const Rehearsed& r) {
        std::vector<Nanoseconds> spent_ns;
        for (const Rehearsed::Tried& gain : r.gains) spent_ns.push_back(gain.spent_ns);
        return spent_ns;
      })
      .def("plans", [](const Rehearsed& r, std::size_t gain) { return r.gains.at(gain).candidate.plans; }, "gain"_a)
      .def("is_linear", [](const Rehearsed& r, std::size_t gain) { return r.gains.at(gain).candidate.is_linear; }, "gain"_a)
      .def("prepare", [](const Rehearsed& r, std::size_t gain) { r.prepare(r.gains.at(gain).candidate); }, "gain"_a)
      .def_prop_ro("stages", [](const Rehearsed& r) { return r.foresight->stages(); })
      .def("find",
           [](const Rehearsed& r, std::int64_t name, const std::vector<Bytes>& sizes_B, lowtide::Index next) {
             Signature signature(static_cast<std::uint64_t>(name));
             for (Bytes size_B : sizes_B) signature.add_size(size_B);
             return r.foresight->find(signature.value(), next);
           },
           "name"_a, "sizes_B"_a, "next"_a)
      .def("is_spare", [](const Rehearsed& r, Tape::Number number, lowtide::Index last,
                          lowtide::Index now) { return r.foresight->is_spare(number, last, now); },
           "number"_a, "last"_a, "now"_a)
      .def("distance_ns", [](const Rehearsed& r, Tape::Number number, lowtide::Index last,
                             lowtide::Index now) { return r.foresight->distance_ns(number, last, now); },
           "number"_a, "last"_a, "now"_a)
      .def("remaining_ns", [](const Rehearsed& r, lowtide::Index now) { return r.foresight->remaining_ns(now); }, "now"_a)
      .def("first_output", [](const Rehearsed& r, lowtide::Index stage) { return r.foresight->first_output(stage); }, "stage"_a)
      .def("outputs", [](const Rehearsed& r, lowtide::Index stage) { return r.foresight->outputs(stage); }, "stage"_a);
  m.def(
      "rehearse",
      [](const Tape& tape, Bytes capacity_B, Bytes host_B, double link_Bps, double weighted_log, double weight_B) {
        const nb::gil_scoped_release release;
        return rehearse(tape, capacity_B, {host_B, link_Bps}, Density(weighted_log, weight_B));
      },
      "tape"_a, "capacity_B"_a, "host_B"_a = 0, "link_Bps"_a = 0.0, "weighted_log"_a = 0.0, "weight_B"_a = 0.0);
  m.def("step_digest", [](const Tape& tape) { return Foresight(tape).digest(); }, "tape"_a);
}

}  // namespace lowtide
