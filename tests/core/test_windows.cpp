#include <vector>

#include "expect.hpp"
#include "random.hpp"
#include "windows.hpp"

using namespace lowtide;

namespace {

template <class T>
std::vector<T> filled(Count count, T value = T{}) {
  return std::vector<T>(static_cast<std::size_t>(count), value);
}

Windows plane(Count outer, Count inner, Count height, Count width, Count kernel, Count stride, Count padding) {
  Windows w{outer, inner, {1, height, width}, {1, 1, 1}, {1, kernel, kernel}, {1, stride, stride}, {0, padding, padding}, {1, 1, 1}};
  for (std::size_t d : {1u, 2u}) w.output[d] = (w.input[d] + 2 * padding - kernel) / stride + 1;
  return w;
}

// The place of every window's maximum, by looking at all: the first of equals.
std::vector<std::int64_t> places(const std::vector<float>& x, const Windows& w) {
  std::vector<std::int64_t> found;
  for (Count block = 0; block < w.outer; ++block)
    for (Count h = 0; h < w.output[1]; ++h)
      for (Count v = 0; v < w.output[2]; ++v)
        for (Count lane = 0; lane < w.inner; ++lane) {
          Count best = -1;
          for (Count i = 0; i < w.kernel[1]; ++i)
            for (Count j = 0; j < w.kernel[2]; ++j) {
              const Count row = h * w.stride[1] - w.padding[1] + i, column = v * w.stride[2] - w.padding[2] + j;
              if (row < 0 || column < 0 || row >= w.input[1] || column >= w.input[2]) continue;
              const auto at = [&](Count place) { return x[static_cast<std::size_t>((block * w.places() + place) * w.inner + lane)]; };
              const Count place = row * w.input[2] + column;
              if (best < 0 || at(place) > at(best)) best = place;
            }
          found.push_back(best);
        }
  return found;
}

void codes_say_what_indices_say() {
  Random dice(1);
  for (const Windows& w : {plane(3, 1, 9, 8, 2, 2, 0), plane(2, 5, 7, 9, 3, 2, 1), plane(70, 1, 33, 31, 3, 1, 1), plane(1, 3, 6, 6, 5, 1, 2)}) {
    EXPECT(w.is_valid());
    auto x = filled<float>(w.outer * w.places() * w.inner);
    for (float& value : x) value = static_cast<float>(dice.below(7));
    const std::vector<std::int64_t> indices = places(x, w);
    const Count results = static_cast<Count>(indices.size());
    auto gradient = filled<float>(results);
    for (float& value : gradient) value = static_cast<float>(dice.below(1000)) / 7;
    for (const int threads : {1, 3}) {
      auto packed = filled<std::uint8_t>(w.packed_B()), pooled = packed;
      auto y = filled<float>(results);
      pack_indices(packed.data(), indices.data(), w, threads);
      pool_maximum(y.data(), pooled.data(), x.data(), w, Float::f32, threads);
      EXPECT(packed == pooled);
      auto plain = filled<float>(w.outer * w.places() * w.inner, 9.0f), own = plain, other = plain;
      pool_gradient(own.data(), gradient.data(), packed.data(), w, Float::f32, threads);
      pool_gradient_from_indices(other.data(), gradient.data(), indices.data(), w, Float::f32, threads);
      std::fill(plain.begin(), plain.end(), 0.0f);
      for (Count i = 0; i < results; ++i) {
        const Count lane = i % w.inner, block = i / w.inner / w.results();
        const auto at = static_cast<std::size_t>((block * w.places() + indices[static_cast<std::size_t>(i)]) * w.inner + lane);
        plain[at] += gradient[static_cast<std::size_t>(i)];
        EXPECT(x[at] == y[static_cast<std::size_t>(i)]);
      }
      EXPECT(own == plain && other == plain);
    }
  }
}

void widths_are_the_least() {
  EXPECT(plane(1, 1, 9, 9, 1, 1, 0).width() == 1 && plane(1, 1, 9, 9, 2, 2, 0).width() == 2);
  EXPECT(plane(1, 1, 9, 9, 3, 2, 0).width() == 4 && plane(1, 1, 19, 19, 16, 1, 0).width() == 8);
  EXPECT(plane(1, 1, 9, 9, 2, 2, 0).packed_B() == 4);
}

void impossible_windows_are_not_valid() {
  EXPECT(!plane(1, 1, 30, 30, 17, 1, 0).is_valid());  // 289 taps
  EXPECT(!plane(1, 1, 3, 3, 5, 1, 2).is_valid());     // a place would not tell its tap
  Windows w = plane(1, 1, 9, 9, 2, 2, 0);
  w.output[2] = 9;
  EXPECT(!w.is_valid());
}

void nonsense_touches_no_memory() {
  const Windows w = plane(2, 1, 6, 6, 3, 2, 1);
  const Count results = w.outer * w.results();
  const auto gradient = filled<float>(results, 1.0f);
  auto out = filled<float>(w.outer * w.places(), 5.0f);
  auto codes = filled<std::uint8_t>(w.packed_B(), 0xff);
  pool_gradient(out.data(), gradient.data(), codes.data(), w, Float::f32, 2);
  EXPECT(out == filled<float>(w.outer * w.places()));
  for (const std::int64_t index : {INT64_MIN, std::int64_t{-1}, w.places(), INT64_MAX}) {
    const auto indices = filled<std::int64_t>(results, index);
    pack_indices(codes.data(), indices.data(), w, 2);
    pool_gradient_from_indices(out.data(), gradient.data(), indices.data(), w, Float::f32, 2);
    EXPECT(out == filled<float>(w.outer * w.places()));
  }
}

}  // namespace

int main() {
  codes_say_what_indices_say();
  widths_are_the_least();
  impossible_windows_are_not_valid();
  nonsense_touches_no_memory();
  return TEST_RESULT;
}
