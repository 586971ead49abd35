// Python's view of the core: conversions only. Long calls release the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "annealer.hpp"
#include "bind_arena.hpp"
#include "bind_bits.hpp"
#include "bind_chain.hpp"
#include "bind_copier.hpp"
#include "bind_eager.hpp"
#include "bind_foresight.hpp"
#include "bind_packer.hpp"
#include "floors.hpp"
#include "greedy.hpp"

namespace nb = nanobind;
using namespace lowtide;

namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T, class Array>
std::vector<T> copy_of(const Array& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> items) {
  auto* kept = new std::vector<T>(std::move(items));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

Rows rows_of(const Ints& begin, const Ints& item) {
  Rows rows;
  rows.begin = copy_of<Index>(begin);
  rows.item = copy_of<Index>(item);
  return rows;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

Index checked(Index i, Index count) {
  require(i >= 0 && i < count, "index out of range");
  return i;
}

void check_change(const Program& program, Index gap, Index retention) {
  checked(gap, program.gap_count());
  const bool fetched = is_by_fetch(retention);
  const Index stage = fetched ? by_fetch(retention) : retention;
  require(stage <= program.stage_count() || stage == NEVER, "a tau past the last stage");
  const bool let_go = program.is_lost(gap) && retention == program.lost_retention(gap);  // what KEEP becomes there
  const bool can = fetched ? program.can_fetch(program.gap_value[static_cast<std::size_t>(gap)]) : program.can_recompute(gap);
  require(retention == KEEP || let_go || (program.is_free(gap) && can && stage > program.gap_start(gap)),
          "a tau that its gap cannot have");
}

std::vector<Index> checked_taus(const Program& program, const Ints& taus) {
  require(static_cast<Index>(taus.size()) == program.gap_count(), "one tau per gap");
  std::vector<Index> copy = copy_of<Index>(taus);
  for (Index g = 0; g < program.gap_count(); ++g) check_change(program, g, copy[static_cast<std::size_t>(g)]);
  return copy;
}

bool apply(Retention& state, const std::vector<Index>& gaps, const std::vector<Index>& taus) {
  require(gaps.size() == taus.size(), "as many gaps as taus");
  std::vector<Change> changes;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    check_change(state.program(), gaps[i], taus[i]);
    for (const Change& c : changes) require(c.gap != gaps[i], "a gap twice in one change");
    changes.push_back({gaps[i], taus[i]});
  }
  return state.apply(changes);
}

// Per gap the class of its twins; -1 for none.
Twins twins_of(const Program& program, const std::optional<Ints>& classes) {
  if (!classes) return {};
  require(static_cast<Index>(classes->size()) == program.gap_count(), "one class per gap");
  std::vector<Index> class_of = copy_of<Index>(*classes);
  for (Index c : class_of) require(c >= -1 && c < program.gap_count(), "a class out of range");
  return {program, std::move(class_of)};
}

std::vector<StageRange> stretches_of(const std::vector<std::pair<Index, Index>>& focus) {
  std::vector<StageRange> stretches;
  for (const auto& [first, last] : focus) stretches.push_back({first, last});
  return stretches;
}

nb::tuple rows_to_numpy(const Rows& rows) { return nb::make_tuple(to_numpy(rows.begin), to_numpy(rows.item)); }

nb::tuple recomputations(const Retention& state) {
  Rows rows;
  for (Index t = 0; t < state.program().stage_count(); ++t) rows.push_row(state.recomputations(t));
  return rows_to_numpy(rows);
}

// Per value: start, end, start, end, ...
nb::tuple spans(const Retention& state) {
  Rows rows;
  std::vector<Index> row;
  for (Index v = 0; v < state.program().value_count(); ++v) {
    row.clear();
    for (const Span& s : state.spans(v)) row.insert(row.end(), {s.start, s.end});
    rows.push_row(row);
  }
  return rows_to_numpy(rows);
}

std::vector<Bytes> live(const Retention& state) {
  std::vector<Bytes> live;
  for (Index t = 0; t < state.program().stage_count(); ++t) live.push_back(state.live(t));
  return live;
}

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program")
      .def("__init__",
           [](Program* self, const Ints& output_begin, const Ints& output, const Ints& read_begin, const Ints& read,
              const Longs& run_time, const Longs& recompute_time, const Longs& trace_peak, const Longs& recompute_peak,
              const Ints& recompute_through, const Ints& part, const Longs& size, const Ints& pinned_from,
              const Ints& lost_from, const Ints& takeover_begin, const Ints& takeover, const Longs& takeover_peak,
              const Ints& opened, const Longs& fetch_B, const Longs& send_B, Bytes fixed) {
             auto program = std::make_unique<Program>();
             program->outputs = rows_of(output_begin, output);
             program->reads = rows_of(read_begin, read);
             program->run_time = copy_of<Picos>(run_time);
             program->recompute_time = copy_of<Picos>(recompute_time);
             program->trace_peak = copy_of<Bytes>(trace_peak);
             program->recompute_peak = copy_of<Bytes>(recompute_peak);
             program->recompute_through = copy_of<Index>(recompute_through);
             program->part = copy_of<Index>(part);
             program->size = copy_of<Bytes>(size);
             program->pinned_from = copy_of<Index>(pinned_from);
             program->lost_from = copy_of<Index>(lost_from);
             program->takeovers = rows_of(takeover_begin, takeover);
             program->takeover_peak = copy_of<Bytes>(takeover_peak);
             program->opened = copy_of<Index>(opened);
             program->fetch_B = copy_of<Bytes>(fetch_B);
             program->send_B = copy_of<Bytes>(send_B);
             program->fixed = fixed;
             require(program->is_valid(), "not a stage program: see program.hpp");
             program->index();
             new (self) Program(std::move(*program));
           })
      .def("set_prices",
           [](Program& p, double send, double fetch) {
             require(std::isfinite(send) && std::isfinite(fetch) && send >= 0 && fetch >= 0, "a price that is none");
             p.send_price = send;
             p.fetch_price = fetch;
           },
           nb::arg("send_ps_per_B"), nb::arg("fetch_ps_per_B"))
      .def_prop_ro("gap_value", [](const Program& p) { return to_numpy(p.gap_value); }, nb::rv_policy::move)
      .def("gap_start", [](const Program& p, Index g) { return p.gap_start(checked(g, p.gap_count())); })
      .def("gap_end", [](const Program& p, Index g) { return p.gap_end(checked(g, p.gap_count())); })
      .def("gap_at", [](const Program& p, Index v, Index t) { return p.gap_at(checked(v, p.value_count()), t); })
      .def("can_fetch",
           [](const Program& p, Index g) {
             return p.can_fetch(p.gap_value[static_cast<std::size_t>(checked(g, p.gap_count()))]);
           })
      .def("can_recompute", [](const Program& p, Index g) { return p.can_recompute(checked(g, p.gap_count())); })
      .def("is_free", [](const Program& p, Index g) { return p.is_free(checked(g, p.gap_count())); })
      .def("least_peak", [](const Program& p, Index t) { return p.least_peak(checked(t, p.stage_count())); })
      .def("operator_floors", [](const Program& p) { return to_numpy(operator_floors(p)); })
      .def("cut_floor", [](const Program& p, Index t) { return cut_floor(p, checked(t, p.stage_count())); },
           nb::call_guard<nb::gil_scoped_release>());
}

void bind_search(nb::module_& m) {
  nb::class_<Retention>(m, "Retention")
      .def(nb::init<const Program&, Bytes, Index>(), nb::arg("program"), nb::arg("budget_B"),
           nb::arg("closure_cap") = 2000, nb::keep_alive<1, 2>())
      .def("set_budget", &Retention::set_budget)
      .def("apply", &apply)
      .def("commit", &Retention::commit)
      .def("undo", &Retention::undo)
      .def("assign", [](Retention& s, const Ints& taus) { return s.assign(checked_taus(s.program(), taus)); })
      .def_prop_ro("taus", [](const Retention& s) { return to_numpy(s.taus()); }, nb::rv_policy::move)
      .def_prop_ro("time_ps", &Retention::time)
      .def_prop_ro("compute_ps", &Retention::compute)
      .def_prop_ro("sent_B", &Retention::sent)
      .def_prop_ro("fetched_B", &Retention::fetched)
      .def_prop_ro("peak_B", &Retention::peak)
      .def_prop_ro("peak_stage", &Retention::peak_stage)
      .def_prop_ro("excess_B", &Retention::excess)
      .def_prop_ro("is_possible", &Retention::is_possible)
      .def_prop_ro("fits", &Retention::fits)
      .def("live_B", [](const Retention& s) { return to_numpy(live(s)); })
      .def("recomputations", &recomputations)
      .def("spans", &spans)
      .def("is_valid", &Retention::is_valid);
  nb::class_<Greedy>(m, "Greedy")
      .def(nb::init<Retention&, Index>(), nb::arg("state"), nb::arg("candidates") = 6, nb::keep_alive<1, 2>())
      .def("run", &Greedy::run, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("tried", &Greedy::tried);
  nb::class_<Annealer>(m, "Annealer")
      .def("__init__",
           [](Annealer* self, Retention& state, std::uint64_t seed, std::int64_t moves, double start, double end,
              Picos enough, const std::optional<Ints>& twins, const std::vector<std::pair<Index, Index>>& focus) {
             const AnnealingRun annealing_run{seed, moves, start, end, enough};
             new (self) Annealer(state, annealing_run, twins_of(state.program(), twins), stretches_of(focus));
           },
           nb::arg("state"), nb::arg("seed"), nb::arg("moves"), nb::arg("start"), nb::arg("end"),
           nb::arg("enough_ps") = 0, nb::arg("twins") = nb::none(), nb::arg("focus") = nb::make_tuple(),
           nb::keep_alive<1, 2>())
      .def("run", &Annealer::run, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("found", &Annealer::found)
      .def_prop_ro("best_time_ps", &Annealer::best_time)
      .def_prop_ro("best_taus", [](const Annealer& a) { return to_numpy(a.best_taus()); }, nb::rv_policy::move)
      .def_prop_ro("lowest_peak_B", &Annealer::lowest_peak)
      .def_prop_ro("lowest_taus", [](const Annealer& a) { return to_numpy(a.lowest_taus()); }, nb::rv_policy::move)
      .def_prop_ro("tried", &Annealer::tried)
      .def_prop_ro("accepted", &Annealer::accepted)
      .def("is_valid", &Annealer::is_valid);
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // a model that lives to the end of the process keeps what relocates its bytes
  m.attr("KEEP") = KEEP;
  m.attr("NEVER") = NEVER;
  bind_program(m);
  bind_search(m);
  bind_chain(m);
  bind_packer(m);
  bind_arena(m);
  bind_bits(m);
  bind_copier(m);
  bind_eager(m);
  bind_foresight(m);
}
