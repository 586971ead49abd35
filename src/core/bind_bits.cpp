// Python's view of packed answers and packed pooling: conversions only. Tensors come as addresses, which the caller keeps
// alive; every call releases the interpreter lock.
#include "bind_bits.hpp"

#include <nanobind/stl/array.h>

#include <stdexcept>

#include "bits.hpp"
#include "blocks.hpp"
#include "windows.hpp"

namespace nb = nanobind;

namespace lowtide {

namespace {

using Address = std::uintptr_t;
using Released = nb::call_guard<nb::gil_scoped_release>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

Float float_of(int code) {
  if (code < 0 || code > static_cast<int>(Float::f16)) throw std::invalid_argument("no floating-point type has this code");
  return static_cast<Float>(code);
}

Question query_of(int code) {
  if (code < 0 || code > static_cast<int>(Question::within)) throw std::invalid_argument("no question has this code");
  return static_cast<Question>(code);
}

double rounded(double value, int type) {
  double result = value;
  with_float(float_of(type), [&](auto zero) {
    decltype(zero) to;
    round_to(to, static_cast<Wide<decltype(zero)>>(value));
    result = static_cast<double>(widened(to));
  });
  return result;
}

void bind_answers(nb::module_& m) {
  m.def("rounded", &rounded, nb::arg("value"), nb::arg("type"));
  m.def("pack_answers",
        [](Address bits, Address x, Count count, int type, int question, double low, double high, int threads) {
          pack_answers(at<std::uint8_t>(bits), at<void>(x), count, float_of(type), query_of(question), low, high, threads);
        },
        nb::arg("bits"), nb::arg("x"), nb::arg("count"), nb::arg("type"), nb::arg("question"), nb::arg("low"), nb::arg("high"),
        nb::arg("threads"), Released());
  m.def("pack_flags",
        [](Address bits, Address flags, Count count, int threads) {
          pack_flags(at<std::uint8_t>(bits), at<std::uint8_t>(flags), count, threads);
        },
        nb::arg("bits"), nb::arg("flags"), nb::arg("count"), nb::arg("threads"), Released());
  m.def("unpack_flags",
        [](Address flags, Address bits, Count count, int threads) {
          unpack_flags(at<std::uint8_t>(flags), at<std::uint8_t>(bits), count, threads);
        },
        nb::arg("flags"), nb::arg("bits"), nb::arg("count"), nb::arg("threads"), Released());
}

void bind_gradients(nb::module_& m) {
  m.def("mask_gradient",
        [](Address out, Address gradient, Address bits, Count count, int item_B, int threads) {
          if (item_B != 2 && item_B != 4 && item_B != 8) throw std::invalid_argument("elements have 2, 4 or 8 bytes");
          mask_gradient(at<void>(out), at<void>(gradient), at<std::uint8_t>(bits), count, item_B, threads);
        },
        nb::arg("out"), nb::arg("gradient"), nb::arg("bits"), nb::arg("count"), nb::arg("item_B"), nb::arg("threads"), Released());
  m.def("scale_gradient",
        [](Address out, Address gradient, Address bits, Count count, int type, double on, double off, int threads) {
          scale_gradient(at<void>(out), at<void>(gradient), at<std::uint8_t>(bits), count, float_of(type), on, off, threads);
        },
        nb::arg("out"), nb::arg("gradient"), nb::arg("bits"), nb::arg("count"), nb::arg("type"), nb::arg("on"), nb::arg("off"),
        nb::arg("threads"), Released());
  m.def("mask_and_scale_gradient",
        [](Address out, Address gradient, Address bits, Count count, int type, double on, int threads) {
          mask_and_scale_gradient(at<void>(out), at<void>(gradient), at<std::uint8_t>(bits), count, float_of(type), on, threads);
        },
        nb::arg("out"), nb::arg("gradient"), nb::arg("bits"), nb::arg("count"), nb::arg("type"), nb::arg("on"), nb::arg("threads"),
        Released());
  m.def("scale_gradient_by_flags",
        [](Address out, Address gradient, Address flags, Count count, int type, double on, double off, int threads) {
          scale_gradient_by_flags(at<void>(out), at<void>(gradient), at<std::uint8_t>(flags), count, float_of(type), on, off, threads);
        },
        nb::arg("out"), nb::arg("gradient"), nb::arg("flags"), nb::arg("count"), nb::arg("type"), nb::arg("on"), nb::arg("off"),
        nb::arg("threads"), Released());
}

void bind_blocks(nb::module_& m) {
  m.def("compressed_B", [](Count count) { return compressed_B(count); }, nb::arg("count"));
  m.def("compress",
        [](Address packed, Address x, Count count, int type, int threads) {
          compress(at<std::uint8_t>(packed), at<void>(x), count, float_of(type), threads);
        },
        nb::arg("packed"), nb::arg("x"), nb::arg("count"), nb::arg("type"), nb::arg("threads"), Released());
  m.def("decompress",
        [](Address x, Address packed, Count count, int type, int threads) {
          decompress(at<void>(x), at<std::uint8_t>(packed), count, float_of(type), threads);
        },
        nb::arg("x"), nb::arg("packed"), nb::arg("count"), nb::arg("type"), nb::arg("threads"), Released());
}

void bind_windows(nb::module_& m) {
  nb::class_<Windows>(m, "Windows")
      .def("__init__",
           [](Windows* self, Count outer, Count inner, const Extents& input, const Extents& output, const Extents& kernel,
              const Extents& stride, const Extents& padding, const Extents& dilation) {
             const Windows windows{outer, inner, input, output, kernel, stride, padding, dilation};
             if (!windows.is_valid()) throw std::invalid_argument("no windows that can be packed: see windows.hpp");
             new (self) Windows(windows);
           },
           nb::arg("outer"), nb::arg("inner"), nb::arg("input"), nb::arg("output"), nb::arg("kernel"), nb::arg("stride"),
           nb::arg("padding"), nb::arg("dilation"))
      .def_prop_ro("width", &Windows::width)
      .def_prop_ro("packed_B", &Windows::packed_B);
  m.def("pool_maximum",
        [](Address y, Address codes, Address x, const Windows& windows, int type, int threads) {
          pool_maximum(at<void>(y), at<std::uint8_t>(codes), at<void>(x), windows, float_of(type), threads);
        },
        nb::arg("y"), nb::arg("codes"), nb::arg("x"), nb::arg("windows"), nb::arg("type"), nb::arg("threads"), Released());
  m.def("pack_indices",
        [](Address codes, Address indices, const Windows& windows, int threads) {
          pack_indices(at<std::uint8_t>(codes), at<std::int64_t>(indices), windows, threads);
        },
        nb::arg("codes"), nb::arg("indices"), nb::arg("windows"), nb::arg("threads"), Released());
  m.def("pool_gradient",
        [](Address out, Address gradient, Address codes, const Windows& windows, int type, int threads) {
          pool_gradient(at<void>(out), at<void>(gradient), at<std::uint8_t>(codes), windows, float_of(type), threads);
        },
        nb::arg("out"), nb::arg("gradient"), nb::arg("codes"), nb::arg("windows"), nb::arg("type"), nb::arg("threads"), Released());
  m.def("pool_gradient_from_indices",
        [](Address out, Address gradient, Address indices, const Windows& windows, int type, int threads) {
          pool_gradient_from_indices(at<void>(out), at<void>(gradient), at<std::int64_t>(indices), windows, float_of(type), threads);
        },
        nb::arg("out"), nb::arg("gradient"), nb::arg("indices"), nb::arg("windows"), nb::arg("type"), nb::arg("threads"), Released());
}

}  // namespace

void bind_bits(nb::module_& m) {
  bind_answers(m);
  bind_gradients(m);
  bind_blocks(m);
  bind_windows(m);
}

}  // namespace lowtide
