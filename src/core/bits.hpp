// One bit per element: what a backward needs to know of a value of which only a comparison matters.
//
// Bit i of byte j speaks of element 8 j + i of a dense tensor, in the order in which its elements lie in memory; bits
// beyond the last element are zero. `count` is elements; a packed tensor has (count + 7) / 8 bytes. Results do not
// depend on the number of threads. Every `out` of gradients may be the very bytes of its gradient, not other bytes that
// overlap.
#pragma once
#include <cstdint>

#include "floats.hpp"
#include "threads.hpp"

namespace lowtide {

// The comparison. All are IEEE's: with a NaN all of <, <=, >, >= are false.
enum class Question : int {
  above = 0,    // !(x <= low)                 ReLU, threshold: a NaN passes
  greater = 1,  // x > low                     leaky ReLU: a NaN takes the slope
  within = 2,   // x > low && x < high         hardtanh, hardsigmoid: a NaN does not pass
};

// Low and high are rounded to the type in which elements are compared.
void pack_answers(std::uint8_t* bits, const void* x, Count count, Float type, Question question, double low, double high,
                  int threads);
// Elements are bytes; anything but zero is true.
void pack_flags(std::uint8_t* bits, const std::uint8_t* flags, Count count, int threads);
void unpack_flags(std::uint8_t* flags, const std::uint8_t* bits, Count count, int threads);

// out = bit ? gradient : +0, as bits: elements are 2, 4 or 8 bytes of any type.
void mask_gradient(void* out, const void* gradient, const std::uint8_t* bits, Count count, int item_B, int threads);
// out = gradient * (bit ? on : off), rounded once.
void scale_gradient(void* out, const void* gradient, const std::uint8_t* bits, Count count, Float type, double on, double off,
                    int threads);
// out = bit ? gradient * on : +0, rounded once.
void mask_and_scale_gradient(void* out, const void* gradient, const std::uint8_t* bits, Count count, Float type, double on,
                             int threads);
// scale_gradient with a byte per element.
void scale_gradient_by_flags(void* out, const void* gradient, const std::uint8_t* flags, Count count, Float type, double on,
                             double off, int threads);

}  // namespace lowtide
