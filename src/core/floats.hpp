// Floating-point elements by code: how each is read into the type that arithmetic is done in, and rounded back.
//
// Arithmetic on 16-bit floats is done in float and rounded to nearest, ties to even, after every operation, as PyTorch
// does it. A NaN remains one; which one is not said.
#pragma once
#include <cstdint>
#include <cstring>

namespace lowtide {

enum class Float : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct BFloat16 {
  std::uint16_t bits;
};

struct Half {
  std::uint16_t bits;
};

inline float widened(float x) { return x; }
inline double widened(double x) { return x; }
inline float widened(BFloat16 x) { return bits_as<float>(static_cast<std::uint32_t>(x.bits) << 16); }
inline float widened(Half x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // subnormal: whole units of 2^-24
    const float size = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -size : size;
  }
  const std::uint32_t wide = exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23;
  return bits_as<float>(sign | wide | mantissa << 13);
}

inline void round_to(float& to, float x) { to = x; }
inline void round_to(double& to, double x) { to = x; }
inline void round_to(BFloat16& to, float x) {
  const auto bits = bits_as<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<std::uint16_t>(x == x ? rounded : 0x7fc0u);
}
inline void round_to(Half& to, float x) {
  const auto bits = bits_as<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  std::uint32_t rounded;
  if (size > 0x7f800000u) {
    rounded = 0x7e00u;
  } else if (size >= 0x477ff000u) {  // 65520 and more: infinite
    rounded = 0x7c00u;
  } else if (size < 0x38800000u) {  // below 2^-14: 0.5 has the unit of a subnormal half
    rounded = bits_as<std::uint32_t>(bits_as<float>(size) + 0.5f) - 0x3f000000u;
  } else {
    rounded = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
  }
  to.bits = static_cast<std::uint16_t>(sign | rounded);
}

// The type in which arithmetic on T is done.
template <class T>
using Wide = decltype(widened(T{}));

// Calls visit(T{}) for the element type that a code names; false if there is none.
template <class Visit>
bool with_float(Float code, const Visit& visit) {
  switch (code) {
    case Float::f32: visit(float{}); return true;
    case Float::f64: visit(double{}); return true;
    case Float::bf16: visit(BFloat16{}); return true;
    case Float::f16: visit(Half{}); return true;
  }
  return false;
}

}  // namespace lowtide
