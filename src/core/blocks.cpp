#include "blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace lowtide {

namespace {

constexpr float LARGEST = 127.0f;
constexpr float UNIT = 12582912.0f;  // 1.5 * 2^23: a float of this size counts in ones, so adding it rounds
constexpr std::int32_t UNIT_BITS = 0x4b400000;

template <class T>
float compress_block(std::uint8_t* codes, const T* x, Count count) {
  float near[BLOCK_ELEMENTS];
  float largest = 0;
  bool finite = true;
  for (Count i = 0; i < count; ++i) {
    near[i] = static_cast<float>(widened(x[i]));
    const float size = std::fabs(near[i]);
    largest = size > largest ? size : largest;
    finite &= size <= std::numeric_limits<float>::max();
  }
  if (!finite) largest = std::numeric_limits<float>::quiet_NaN();
  const float factor = largest > 0 ? LARGEST / largest : 0.0f;
  for (Count i = 0; i < count; ++i)
    codes[i] = static_cast<std::uint8_t>(bits_as<std::int32_t>(near[i] * factor + UNIT) - UNIT_BITS);
  return largest / LARGEST;
}

}  // namespace

void compress(std::uint8_t* packed, const void* x, Count count, Float type, int threads) {
  std::uint8_t* const scales = packed + codes_B(count);
  std::fill(packed + count, scales, std::uint8_t{0});
  with_float(type, [&](auto zero) {
    const auto* from = static_cast<const decltype(zero)*>(x);
    in_pieces(count, BLOCK_ELEMENTS, threads, [=](Count first, Count last) {
      for (Count i = first; i < last; i += BLOCK_ELEMENTS) {
        const float scale = compress_block(packed + i, from + i, std::min(BLOCK_ELEMENTS, last - i));
        std::memcpy(scales + i / BLOCK_ELEMENTS * static_cast<Count>(sizeof scale), &scale, sizeof scale);
      }
    });
  });
}

void decompress(void* x, const std::uint8_t* packed, Count count, Float type, int threads) {
  const std::uint8_t* const scales = packed + codes_B(count);
  with_float(type, [&](auto zero) {
    auto* to = static_cast<decltype(zero)*>(x);
    in_pieces(count, BLOCK_ELEMENTS, threads, [=](Count first, Count last) {
      for (Count i = first; i < last; i += BLOCK_ELEMENTS) {
        float scale;
        std::memcpy(&scale, scales + i / BLOCK_ELEMENTS * static_cast<Count>(sizeof scale), sizeof scale);
        const Count stop = std::min(i + BLOCK_ELEMENTS, last);
        for (Count k = i; k < stop; ++k) round_to(to[k], static_cast<float>(static_cast<std::int8_t>(packed[k])) * scale);
      }
    });
  });
}

}  // namespace lowtide
