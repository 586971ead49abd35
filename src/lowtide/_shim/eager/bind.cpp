// Python's view of the eager runtime: conversions only.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include "fallback.hpp"

using namespace lowtide;
using namespace lowtide::shim;

namespace {

const at::Tensor& tensor_in(py::handle object) {
  if (!THPVariable_Check(object.ptr())) throw py::type_error("this is no tensor");
  return THPVariable_Unpack(object.ptr());
}

// A tensor, or a look at all bytes of a storage.
at::Tensor bytes_in(py::handle object) {
  if (!torch::isStorage(object.ptr())) return tensor_in(object);
  return at::detail::make_tensor<c10::TensorImpl>(torch::createStorage(object.ptr()),
                                                  c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                  caffe2::TypeMeta::Make<std::uint8_t>());
}

Silence silence_from(const py::dict& hidden, const std::vector<std::string>& views,
                     const std::vector<std::string>& communicating, const std::vector<std::string>& trusted) {
  Silence silence;
  for (const auto& [name, said] : hidden) {
    const auto fields = said.cast<std::tuple<std::vector<std::string>, std::vector<std::string>, std::string, bool>>();
    silence.hidden[name.cast<std::string>()] = {std::get<0>(fields), std::get<1>(fields), std::get<2>(fields),
                                                std::get<3>(fields)};
  }
  silence.views.insert(views.begin(), views.end());
  silence.communicating.insert(communicating.begin(), communicating.end());
  silence.trusted.insert(trusted.begin(), trusted.end());
  return silence;
}

std::unique_ptr<Runtime> make_runtime(const py::capsule& gates_capsule, const py::object& slab, const std::string& policy,
                                      Bytes host_B, double link_Bps, const py::dict& hidden,
                                      const std::vector<std::string>& views,
                                      const std::vector<std::string>& communicating,
                                      const std::vector<std::string>& trusted, bool records,
                                      const py::object& met_parameter, const py::object& thrashes) {
  const auto& gates = *gates_capsule.get_pointer<const Gates>();
  Runtime::Options options{policy, {host_B, link_Bps}, silence_from(hidden, views, communicating, trusted),
                           records, {}, {}};
  options.met_parameter = [met_parameter](const at::Tensor& parameter) {
    const py::gil_scoped_acquire hold;
    met_parameter(py::reinterpret_steal<py::object>(THPVariable_Wrap(parameter)));
  };
  options.thrashes = [thrashes] {
    const py::gil_scoped_acquire hold;
    try {
      thrashes();
    } catch (py::error_already_set& error) {  // a warning that was made an error: the recovery goes on
      error.discard_as_unraisable("lowtide.eager");
    }
  };
  return std::make_unique<Runtime>(gates, *gates.slab_of(slab.ptr()), std::move(options));
}

py::dict stats(Runtime& runtime) {
  const RuntimeStatistics own = runtime.statistics();
  const eager::EvictionStatistics kept = runtime.eviction_statistics();
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (const StepCosts& step : own.steps) steps.emplace_back(step.cost_ns, step.recompute_ns);
  py::dict d;
  d["peak_B"] = runtime.peak_B();
  d["calls"] = own.calls;
  d["cost_ns"] = own.cost_ns;
  d["recomputations"] = kept.recomputations;
  d["recompute_ns"] = kept.recompute_ns;
  d["evictions"] = kept.evictions;
  d["evicted_B"] = kept.evicted_B;
  d["requests"] = kept.searches;
  d["searches"] = kept.searches;
  d["candidates"] = runtime.weighed();
  d["search_s"] = kept.search_s;
  d["fragmentation"] = kept.fragmentation();
  d["moves"] = kept.moves;
  d["moved_B"] = kept.moved_B;
  d["retries"] = own.retries;
  d["sent_B"] = kept.sent_B;
  d["fetched_B"] = kept.fetched_B;
  d["fetches"] = kept.fetches;
  d["divergences"] = kept.divergences;
  d["foreign_B"] = own.foreign_B;
  d["spilled_B"] = own.spilled_B;
  d["steps"] = steps;
  d["digest"] = kept.digest;
  return d;
}

template <class Work>
auto unlocked(const Work& work) {
  const py::gil_scoped_release release;
  return work();
}

}  // namespace

PYBIND11_MODULE(_lowtide_eager, m) {
  m.doc() = "Eager training under a hard budget, below Python.";
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const c10::OutOfMemoryError& error) {
      PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), error.what_without_backtrace());
    } catch (const c10::Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
  m.def("objection", &fallback_objection);
  m.def("register", &register_fallback);
  m.def("intercept", [](Runtime* runtime) { intercept(runtime); });
  py::class_<Runtime>(m, "Runtime", py::module_local())
      .def(py::init(&make_runtime), py::arg("gates"), py::arg("slab"), py::arg("policy"), py::arg("host_B"),
           py::arg("link_Bps"), py::arg("hidden"), py::arg("views"), py::arg("communicating"),
           py::arg("trusted"), py::arg("records"),
           py::arg("met_parameter"), py::arg("thrashes"))
      .def("open", &Runtime::open)
      .def("close", [](Runtime& r) { unlocked([&] { r.close(); }); })
      .def("restore_all", [](Runtime& r) { return unlocked([&] { return r.restore_all(); }); })
      .def("bring_in", [](Runtime& r, py::handle t) {
        const at::Tensor tensor = tensor_in(t);
        unlocked([&] { r.bring_in(tensor); });
      })
      .def("gradient_landed", [](Runtime& r, py::handle t) {
        const at::Tensor tensor = tensor_in(t);
        unlocked([&] { r.gradient_landed(tensor); });
      })
      .def("reach", [](Runtime& r, py::handle t, bool for_good) {
        const at::Tensor tensor = bytes_in(t);
        unlocked([&] { r.reach(tensor, for_good); });
      })
      .def("share", [](Runtime& r, py::handle t) {
        const at::Tensor tensor = bytes_in(t);
        unlocked([&] { r.share(tensor); });
      })
      .def("write", [](Runtime& r, py::handle t) {
        const at::Tensor tensor = bytes_in(t);
        unlocked([&] { r.write(tensor); });
      })
      .def("optimizer_began", [](Runtime& r) { unlocked([&] { r.optimizer_began(); }); })
      .def("optimizer_ended", &Runtime::optimizer_ended)
      .def("take_diary", &Runtime::take_diary)
      .def("stats", &stats);
}
