// Python's view of the eager engine: conversions only. A replay releases the interpreter lock.
#include "bind_eager.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "eager/replay.hpp"

namespace nb = nanobind;

namespace lowtide {

namespace {

using namespace eager;
using Longs = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::int64_t> copy_of(const Longs& array) { return {array.data(), array.data() + array.size()}; }

ReplayResult run(const Tape& tape, const std::string& policy, Bytes budget_B, const Rules& rules, const PolicyOptions& options) {
  const std::unique_ptr<Policy> chosen = make_policy(policy, options);
  if (budget_B < 1) throw std::invalid_argument("a budget must be positive");
  const nb::gil_scoped_release release;
  return replay(tape, *chosen, budget_B, rules);
}

template <class Field>
auto counted(Field EvictionStatistics::*field) {
  return [field](const ReplayResult& result) { return result.statistics.*field; };
}

}  // namespace

void bind_eager(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Tape>(m, "Tape")
      .def("__init__",
           [](Tape* self, const Longs& words, const Longs& kept) { new (self) Tape(copy_of(words), copy_of(kept)); },
           "words"_a, "kept"_a)
      .def_prop_ro("contents", &Tape::contents)
      .def_prop_ro("time_ns", &Tape::time_ns);
  nb::class_<ReplayResult>(m, "Replayed")
      .def_prop_ro("out_of_capacity", [](const ReplayResult& r) { return r.end == ReplayResult::End::out_of_capacity; })
      .def_prop_ro("too_slow", [](const ReplayResult& r) { return r.end == ReplayResult::End::too_slow; })
      .def_ro("event", &ReplayResult::event)
      .def_ro("need_B", &ReplayResult::need_B)
      .def_ro("capacity_B", &ReplayResult::capacity_B)
      .def_ro("in_use_B", &ReplayResult::in_use_B)
      .def_ro("pinned_B", &ReplayResult::pinned_B)
      .def_ro("peak_B", &ReplayResult::peak_B)
      .def_ro("weighed", &ReplayResult::weighed)
      .def_prop_ro("evictions", counted(&EvictionStatistics::evictions))
      .def_prop_ro("evicted_B", counted(&EvictionStatistics::evicted_B))
      .def_prop_ro("recomputations", counted(&EvictionStatistics::recomputations))
      .def_prop_ro("recompute_ns", counted(&EvictionStatistics::recompute_ns))
      .def_prop_ro("searches", counted(&EvictionStatistics::searches))
      .def_prop_ro("search_s", counted(&EvictionStatistics::search_s))
      .def_prop_ro("moves", counted(&EvictionStatistics::moves))
      .def_prop_ro("moved_B", counted(&EvictionStatistics::moved_B))
      .def_prop_ro("sent_B", counted(&EvictionStatistics::sent_B))
      .def_prop_ro("fetched_B", counted(&EvictionStatistics::fetched_B))
      .def_prop_ro("fragmentation", [](const ReplayResult& r) { return r.statistics.fragmentation(); })
      .def_prop_ro("digest", counted(&EvictionStatistics::digest));
  m.def(
      "replay",
      [](const Tape& tape, const std::string& policy, Bytes budget_B, bool addresses, bool forgets, Bytes alignment_B,
         Bytes small_B, double limit, Bytes host_B, double link_Bps) {
        return run(tape, policy, budget_B, {addresses, forgets, alignment_B, small_B, limit}, {host_B, link_Bps});
      },
      "tape"_a, "policy"_a, "budget_B"_a, "addresses"_a = true, "forgets"_a = true, "alignment_B"_a = 64,
      "small_B"_a = 10240, "limit"_a = 2.0, "host_B"_a = 0, "link_Bps"_a = 0.0);
  m.def("eager_policies", &policy_names);
}

}  // namespace lowtide
