// Python's view of the packer: conversions only. Long calls release the interpreter lock.
#include "bind_packer.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "order_search.hpp"
#include "valley_search.hpp"

namespace nb = nanobind;

namespace lowtide {

namespace {

Fit fit_of(bool best) { return best ? Fit::best : Fit::first; }

std::vector<Index> checked_order(const Lifetimes& lifetimes, std::vector<Index> order) {
  std::vector<Index> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool whole = static_cast<Index>(sorted.size()) == lifetimes.count();
  for (std::size_t i = 0; whole && i < sorted.size(); ++i) whole = sorted[i] == static_cast<Index>(i);
  if (!whole) throw std::invalid_argument("an order names every buffer once");
  return order;
}

void bind_lifetimes(nb::module_& m) {
  nb::class_<Lifetimes>(m, "Lifetimes")
      .def("__init__",
           [](Lifetimes* self, std::vector<Index> start, std::vector<Index> length, std::vector<Bytes> size,
              std::vector<Bytes> fixed, Index period) {
             auto lifetimes = std::make_unique<Lifetimes>();
             lifetimes->start = std::move(start);
             lifetimes->length = std::move(length);
             lifetimes->size = std::move(size);
             lifetimes->fixed = std::move(fixed);
             lifetimes->period = period;
             if (!lifetimes->is_valid()) throw std::invalid_argument("not lifetimes: see lifetimes.hpp");
             new (self) Lifetimes(std::move(*lifetimes));
           })
      .def_prop_ro("count", &Lifetimes::count);
  m.def(
      "place_in_order",
      [](const Lifetimes& lifetimes, std::vector<Index> order, bool best_fit) {
        order = checked_order(lifetimes, std::move(order));
        const nb::gil_scoped_release release;
        return place_in_order(lifetimes, order, fit_of(best_fit));
      },
      nb::arg("lifetimes"), nb::arg("order"), nb::arg("best_fit"));
}

void bind_order_search(nb::module_& m) {
  nb::class_<OrderSearch>(m, "OrderSearch")
      .def("__init__",
           [](OrderSearch* self, const Lifetimes& lifetimes, std::vector<Index> order, bool best_fit,
              std::uint64_t seed, Bytes enough) {
             new (self) OrderSearch(lifetimes, checked_order(lifetimes, std::move(order)), fit_of(best_fit), seed,
                                    enough);
           },
           nb::arg("lifetimes"), nb::arg("order"), nb::arg("best_fit"), nb::arg("seed"), nb::arg("enough"),
           nb::keep_alive<1, 2>())
      .def("run", &OrderSearch::run, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("best_height", &OrderSearch::best_height)
      .def_prop_ro("best_offsets", &OrderSearch::best_offsets)
      .def_prop_ro("work", &OrderSearch::work)
      .def_prop_ro("tried", &OrderSearch::tried)
      .def_prop_ro("kept", &OrderSearch::kept)
      .def("is_valid", &OrderSearch::is_valid);
}

std::optional<bool> fits(const ValleySearch& search) {
  if (search.answer() == ValleySearch::Answer::open) return std::nullopt;
  return search.answer() == ValleySearch::Answer::fits;
}

void bind_valley_search(nb::module_& m) {
  nb::class_<ValleySearch>(m, "ValleySearch")
      .def(nb::init<const Lifetimes&, Bytes, std::uint64_t>(), nb::arg("lifetimes"), nb::arg("capacity"),
           nb::arg("seed"), nb::keep_alive<1, 2>())
      .def(
          "run",
          [](ValleySearch& search, std::int64_t work, std::int64_t tries, const nb::callable& tick) {
            const auto poll = [&] {
              const nb::gil_scoped_acquire acquire;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C
              tick();
            };
            {
              const nb::gil_scoped_release release;
              search.run(work, tries, poll);
            }
            return fits(search);
          },
          nb::arg("work"), nb::arg("tries"), nb::arg("tick"))
      .def_prop_ro("offsets", &ValleySearch::offsets)
      .def_prop_ro("work", &ValleySearch::work)
      .def_prop_ro("nodes", &ValleySearch::nodes)
      .def_prop_ro("tries", &ValleySearch::tries);
}

}  // namespace

void bind_packer(nb::module_& m) {
  bind_lifetimes(m);
  bind_order_search(m);
  bind_valley_search(m);
}

}  // namespace lowtide
