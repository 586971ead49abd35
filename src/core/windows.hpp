// Maximum pooling that keeps, per result, where inside its window the maximum lay, in the fewest bits.
//
// Data are `outer` blocks of positions times `inner` lanes: planes of contiguous tensors (outer = batch * channels, inner = 1), or
// images of channels-last ones (outer = batch, inner = channels). A window of a result has taps, counted from 0, the last
// dimension fastest, padding included; the tap of the maximum is the result's CODE. Codes lie in `width` bits each, one after
// the other in the order of the results in memory, the lowest bit first; the tensor has (results * width + 7) / 8 bytes.
//
// INVARIANT (is_valid): two taps of one window that lie inside the input never have the same distance from the window's
// first place, so a place in the input tells its tap; `width` is the least in which every tap can be written.
// Sums of gradients are made in the order of the results, rounded after every addition, as PyTorch makes them. A code or an
// index that no maximum can have is left out: it touches no memory.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "floats.hpp"
#include "threads.hpp"

namespace lowtide {

// Three dimensions, outermost first; planes have 1 as their first. Counts of elements.
using Extents = std::array<Count, 3>;

struct Windows {
  Count outer = 0, inner = 1;
  Extents input{1, 1, 1}, output{1, 1, 1};
  Extents kernel{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};

  Count places() const { return input[0] * input[1] * input[2]; }     // of one block's input
  Count results() const { return output[0] * output[1] * output[2]; }  // of one block
  Count taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int width() const;
  Count packed_B() const { return (outer * results() * inner * width() + 7) / 8; }
  bool is_valid() const;
};

constexpr Count MOST_TAPS = 256;

// The largest element of every window, the first of equals; a NaN is larger than anything, the last of several wins.
// `y` has the results, `codes` their codes.
void pool_maximum(void* y, std::uint8_t* codes, const void* x, const Windows& windows, Float type, int threads);
// Codes from indices into a block's places, as PyTorch gives them.
void pack_indices(std::uint8_t* codes, const std::int64_t* indices, const Windows& windows, int threads);
// The gradient of the input, from codes or from indices.
void pool_gradient(void* out, const void* gradient, const std::uint8_t* codes, const Windows& windows, Float type, int threads);
void pool_gradient_from_indices(void* out, const void* gradient, const std::int64_t* indices, const Windows& windows, Float type,
                                int threads);

}  // namespace lowtide
