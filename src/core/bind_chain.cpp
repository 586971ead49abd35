// Python's view of the chain table: conversions only. Filling it releases the interpreter lock.
#include "bind_chain.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "chain_table.hpp"

namespace nb = nanobind;

namespace lowtide {

namespace {

using Indices = std::vector<Index>;
using Times = std::vector<Picos>;

void check_slots(const ChainTable& table, Index slots) {
  if (slots < 0 || slots > table.slots()) throw std::invalid_argument("slots out of range");
}

double time_of(const ChainTable& table, Index slots) {
  check_slots(table, slots);
  return table.time(slots);
}

std::tuple<Indices, Indices, Indices> decode(const ChainTable& table, Index slots) {
  check_slots(table, slots);
  if (table.least() < 0 || slots < table.least()) throw std::invalid_argument("too few slots for any plan");
  ChainPlan plan = table.decode(slots);
  return {std::move(plan.option), std::move(plan.saved_from), std::move(plan.crossing_from)};
}

}  // namespace

void bind_chain(nb::module_& m) {
  nb::class_<ChainTable>(m, "ChainTable")
      .def("__init__",
           [](ChainTable* self, Times run, Times alone, Indices running, Indices reversing, Indices behind, Indices held,
              Indices option_begin, Indices option_saved, Indices option_running, Indices option_reversing,
              Times option_time, Index slots) {
             ChainCosts costs{std::move(run),          std::move(alone),        std::move(running),
                              std::move(reversing),    std::move(behind),       std::move(held),
                              std::move(option_begin), std::move(option_saved), std::move(option_running),
                              std::move(option_reversing), std::move(option_time)};
             if (!costs.is_valid() || costs.links() == 0 || slots < 0) throw std::invalid_argument("not a chain: see chain_table.hpp");
             nb::gil_scoped_release released;
             new (self) ChainTable(std::move(costs), slots);
           },
           nb::arg("run_ps"), nb::arg("alone_ps"), nb::arg("running"), nb::arg("reversing"), nb::arg("behind"),
           nb::arg("held"), nb::arg("option_begin"), nb::arg("option_saved"), nb::arg("option_running"), nb::arg("option_reversing"),
           nb::arg("option_ps"), nb::arg("slots"))
      .def_prop_ro("least", &ChainTable::least)
      .def("time_ps", &time_of)
      .def("decode", &decode)
      .def("is_valid", &ChainTable::is_valid);
}

}  // namespace lowtide
