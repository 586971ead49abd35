// A byte per element: blocks of elements, each with a scale of its own.
//
// A block is BLOCK elements of a dense tensor in the order of memory, the last one what is left. Its scale is its largest
// magnitude over 127, in float; an element is its code, from -127 to 127, times the scale: off by half a scale at the most,
// and by what rounding to the element's type adds. In a block with anything that is not finite nothing is a number.
// A packed tensor has a code per element, then zeros to a multiple of 4 bytes, then the scales.
#pragma once
#include <cstdint>

#include "floats.hpp"
#include "threads.hpp"

namespace lowtide {

constexpr Count BLOCK_ELEMENTS = 256;

constexpr Count codes_B(Count count) { return (count + 3) / 4 * 4; }
constexpr Count compressed_B(Count count) {
  return codes_B(count) + (count + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS * static_cast<Count>(sizeof(float));
}

void compress(std::uint8_t* packed, const void* x, Count count, Float type, int threads);
void decompress(void* x, const std::uint8_t* packed, Count count, Float type, int threads);

}  // namespace lowtide
