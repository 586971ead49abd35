#include "windows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace lowtide {

namespace {

constexpr Count GROUP = 8;  // codes of which the first begins a byte, whatever the width

// Per tap, how far it is from the window's first place.
std::vector<Count> distances(const Windows& w) {
  std::vector<Count> found;
  for (Count d = 0; d < w.kernel[0]; ++d)
    for (Count h = 0; h < w.kernel[1]; ++h)
      for (Count v = 0; v < w.kernel[2]; ++v)
        found.push_back((d * w.dilation[0] * w.input[1] + h * w.dilation[1]) * w.input[2] + v * w.dilation[2]);
  return found;
}

// Walks over the results of blocks in order, and knows where in its block's input each window begins: outside of it where
// the window begins in the padding.
class Walk {
 public:
  Walk(const Windows& w, Count result) : w_(&w) {
    const Count plane = w.output[1] * w.output[2];
    at_ = {result / plane, result / w.output[2] % w.output[1], result % w.output[2]};
    for (std::size_t d = 0; d < 3; ++d) turn(d, at_[d]);
  }
  const Extents& corner() const { return corner_; }
  Count place() const { return (corner_[0] * w_->input[1] + corner_[1]) * w_->input[2] + corner_[2]; }
  // To the next result; after a block's last one to the next block's first, and then true.
  bool next() {
    for (std::size_t d = 3; d-- > 0;) {
      if (at_[d] + 1 < w_->output[d]) {
        turn(d, at_[d] + 1);
        return false;
      }
      turn(d, 0);
    }
    return true;
  }

 private:
  void turn(std::size_t dimension, Count result) {
    at_[dimension] = result;
    corner_[dimension] = result * w_->stride[dimension] - w_->padding[dimension];
  }
  const Windows* w_;
  Extents at_{}, corner_{};
};

// Writes codes one after the other from an element whose code begins a byte.
class Writer {
 public:
  Writer(std::uint8_t* codes, Count element, int width) : to_(codes + element * width / 8), width_(width) {}
  void put(unsigned code) {
    held_ |= code << bits_;
    bits_ += width_;
    for (; bits_ >= 8; bits_ -= 8, held_ >>= 8) *to_++ = static_cast<std::uint8_t>(held_);
  }
  void finish() {
    if (bits_ > 0) *to_ = static_cast<std::uint8_t>(held_);
  }

 private:
  std::uint8_t* to_;
  int width_, bits_ = 0;
  unsigned held_ = 0;
};

// Reads codes one after the other from any element on; reads no byte beyond the last one's.
class Reader {
 public:
  Reader(const std::uint8_t* codes, Count element, int width)
      : from_(codes + element * width / 8), width_(width), mask_((1u << width) - 1u) {
    const int skipped = static_cast<int>(element * width % 8);
    if (skipped == 0) return;
    held_ = static_cast<unsigned>(*from_++) >> skipped;
    bits_ = 8 - skipped;
  }
  unsigned take() {
    if (bits_ < width_) {
      held_ |= static_cast<unsigned>(*from_++) << bits_;
      bits_ += 8;
    }
    const unsigned code = held_ & mask_;
    held_ >>= width_;
    bits_ -= width_;
    return code;
  }

 private:
  const std::uint8_t* from_;
  int width_, bits_ = 0;
  unsigned mask_, held_ = 0;
};

template <class T>
void add(T& to, T what) {
  round_to(to, static_cast<Wide<T>>(widened(to) + widened(what)));
}

// Adds every element of the gradient at the place that source(window's place) names for it: blocks [first, last).
template <class T, class Source>
void add_blocks(T* out, const T* gradient, const Windows& w, Count first, Count last, Source source) {
  const Count places = w.places(), results = w.results();
  Walk walk(w, 0);
  for (Count block = first; block < last; ++block) {
    T* const to = out + block * places * w.inner;
    std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(places * w.inner) * sizeof(T));
    const T* from = gradient + block * results * w.inner;
    do {
      const Count window = walk.place();
      for (Count lane = 0; lane < w.inner; ++lane, ++from) {
        const Count place = source(window);
        if (place >= 0 && place < places) add(to[place * w.inner + lane], *from);
      }
    } while (!walk.next());
  }
}

Count worth_a_thread(const Windows& w) { return std::max<Count>(1, WORTH_A_THREAD / std::max<Count>(1, w.places() * w.inner)); }

// The taps of a window that lie inside the input, per dimension: [first, last).
struct Inside {
  Extents first{}, last{};
  Inside(const Windows& w, const Extents& corner) {
    for (std::size_t d = 0; d < 3; ++d) {
      const Count step = w.dilation[d], room = w.input[d] - corner[d];
      first[d] = corner[d] < 0 ? (-corner[d] + step - 1) / step : 0;
      last[d] = (w.kernel[d] - 1) * step < room ? w.kernel[d] : (room + step - 1) / step;
    }
  }
};

// Calls visit(tap, place) for the taps of a window that lie inside the input, in order.
template <class Visit>
void over_taps(const Windows& w, const Walk& walk, const Inside& taps, const Visit& visit) {
  const Count corner = walk.place();
  for (Count d = taps.first[0]; d < taps.last[0]; ++d)
    for (Count h = taps.first[1]; h < taps.last[1]; ++h) {
      const Count row = corner + (d * w.dilation[0] * w.input[1] + h * w.dilation[1]) * w.input[2];
      const Count tap = (d * w.kernel[1] + h) * w.kernel[2];
      for (Count v = taps.first[2]; v < taps.last[2]; ++v) visit(static_cast<std::uint32_t>(tap + v), row + v * w.dilation[2]);
    }
}

constexpr Count LANES = 64;  // of one result that are looked at together

template <class T>
void pool_lanes(T* y, Writer& writer, const T* block, const Windows& w, const Walk& walk, Count lanes) {
  using W = Wide<T>;
  const Inside taps(w, walk.corner());
  W best[LANES];
  std::uint32_t tap_of[LANES];
  const auto tap0 = static_cast<std::uint32_t>((taps.first[0] * w.kernel[1] + taps.first[1]) * w.kernel[2] + taps.first[2]);
  std::fill_n(best, lanes, -std::numeric_limits<W>::infinity());
  std::fill_n(tap_of, lanes, tap0);
  over_taps(w, walk, taps, [&](std::uint32_t tap, Count place) {
    const T* const from = block + place * w.inner;
    for (Count lane = 0; lane < lanes; ++lane) {
      const W value = widened(from[lane]);
      const bool wins = (value > best[lane]) | !(value == value);
      best[lane] = wins ? value : best[lane];
      tap_of[lane] = wins ? tap : tap_of[lane];
    }
  });
  for (Count lane = 0; lane < lanes; ++lane) {
    round_to(y[lane], best[lane]);
    writer.put(tap_of[lane]);
  }
}

template <class T>
void pool_results(T* y, std::uint8_t* codes, const T* x, const Windows& w, Count first, Count last) {
  Writer writer(codes, first, w.width());
  Walk walk(w, first / w.inner % w.results());
  const T* block = x + first / w.inner / w.results() * w.places() * w.inner;
  Count lane = first % w.inner;
  for (Count i = first; i < last;) {
    const Count lanes = std::min({w.inner - lane, last - i, LANES});
    pool_lanes(y + i, writer, block + lane, w, walk, lanes);
    i += lanes;
    lane += lanes;
    if (lane < w.inner) continue;
    lane = 0;
    if (walk.next()) block += w.places() * w.inner;
  }
  writer.finish();
}

}  // namespace

int Windows::width() const {
  int bits = 1;
  while ((Count{1} << bits) < taps()) ++bits;
  return bits;
}

bool Windows::is_valid() const {
  if (outer < 0 || inner < 1) return false;
  for (std::size_t d = 0; d < 3; ++d) {
    if (input[d] < 1 || output[d] < 1 || kernel[d] < 1 || stride[d] < 1 || padding[d] < 0 || dilation[d] < 1) return false;
    // A tap inside the input: the last window begins before the input ends.
    if ((output[d] - 1) * stride[d] - padding[d] >= input[d] || padding[d] > (kernel[d] - 1) * dilation[d]) return false;
    if ((kernel[d] - 1) * dilation[d] >= input[d]) return false;
  }
  return taps() <= MOST_TAPS;
}

void pool_maximum(void* y, std::uint8_t* codes, const void* x, const Windows& w, Float type, int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    in_pieces(w.outer * w.results() * w.inner, GROUP, threads, [&](Count first, Count last) {
      pool_results(static_cast<T*>(y), codes, static_cast<const T*>(x), w, first, last);
    });
  });
}

void pack_indices(std::uint8_t* codes, const std::int64_t* indices, const Windows& w, int threads) {
  const std::vector<Count> from_corner = distances(w);
  std::vector<std::uint8_t> tap_of(static_cast<std::size_t>(from_corner.back()) + 1, 0);
  for (std::size_t tap = 0; tap < from_corner.size(); ++tap)
    tap_of[static_cast<std::size_t>(from_corner[tap])] = static_cast<std::uint8_t>(tap);
  in_pieces(w.outer * w.results() * w.inner, GROUP, threads, [&](Count first, Count last) {
    Writer writer(codes, first, w.width());
    Walk walk(w, first / w.inner % w.results());
    Count lane = first % w.inner;
    for (Count i = first; i < last; ++i) {
      const auto distance = static_cast<std::uint64_t>(indices[i]) - static_cast<std::uint64_t>(walk.place());
      writer.put(distance < tap_of.size() ? tap_of[distance] : 0u);
      if (++lane < w.inner) continue;
      lane = 0;
      walk.next();
    }
    writer.finish();
  });
}

void pool_gradient(void* out, const void* gradient, const std::uint8_t* codes, const Windows& w, Float type, int threads) {
  std::vector<Count> distance = distances(w);
  distance.resize(std::size_t{1} << w.width(), std::numeric_limits<Count>::max() / 2);
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    in_pieces(w.outer, 1, threads, [&](Count first, Count last) {
      Reader reader(codes, first * w.results() * w.inner, w.width());
      add_blocks(static_cast<T*>(out), static_cast<const T*>(gradient), w, first, last,
                    [&](Count window) { return window + distance[reader.take()]; });
    }, worth_a_thread(w));
  });
}

void pool_gradient_from_indices(void* out, const void* gradient, const std::int64_t* indices, const Windows& w, Float type,
                                int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    in_pieces(w.outer, 1, threads, [&](Count first, Count last) {
      const std::int64_t* next = indices + first * w.results() * w.inner;
      add_blocks(static_cast<T*>(out), static_cast<const T*>(gradient), w, first, last, [&next](Count) { return *next++; });
    }, worth_a_thread(w));
  });
}

}  // namespace lowtide
