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
  // How many results are left in the row, this one included.
  Count left() const { return w_->output[2] - at_[2]; }
  // On by so many results of the row, `left()` at most; behind a block's last one it is at the next block's first, and then true.
  bool advance(Count results) {
    turn(2, at_[2] + results);
    for (std::size_t d = 3; d-- > 0;) {
      if (at_[d] < w_->output[d]) return false;
      turn(d, 0);
      if (d > 0) turn(d - 1, at_[d - 1] + 1);
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

// Results that are handled together: neighbours in a row, or lanes of one result.
constexpr Count RUN = 64;

// Adds the gradient's elements at the places that name(place[], count, first window's place, step from window to window)
// finds for them: blocks [first, last).
template <class T, class Name>
void add_blocks(T* out, const T* gradient, const Windows& w, Count first, Count last, Name name) {
  const Count places = w.places();
  const bool in_rows = w.inner == 1;
  const Count step = in_rows ? w.stride[2] : 0, lanes_apart = in_rows ? 0 : 1;
  Walk walk(w, 0);
  Count place[RUN];
  for (Count block = first; block < last; ++block) {
    T* const to = out + block * places * w.inner;
    std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(places * w.inner) * sizeof(T));
    const T* from = gradient + block * w.results() * w.inner;
    Count lane = 0;
    for (bool more = true; more;) {
      const Count count = std::min(RUN, in_rows ? walk.left() : w.inner - lane);
      name(place, count, walk.place(), step);
      for (Count k = 0; k < count; ++k)
        if (static_cast<std::uint64_t>(place[k]) < static_cast<std::uint64_t>(places))
          add(to[place[k] * w.inner + lane + k * lanes_apart], from[k]);
      from += count;
      lane += count;
      if (in_rows || lane == w.inner) {
        lane = 0;
        more = !walk.advance(in_rows ? count : 1);
      }
    }
  }
}

Count worth_a_thread(const Windows& w) { return std::max<Count>(1, WORTH_A_THREAD / std::max<Count>(1, w.places() * w.inner)); }

// The taps of a dimension that lie inside the input, for a window that begins at `corner`: [first, last).
struct Inside {
  Count first, last;
  Inside(const Windows& w, std::size_t dimension, Count corner) {
    const Count step = w.dilation[dimension], capacity = w.input[dimension] - corner;
    first = corner < 0 ? (-corner + step - 1) / step : 0;
    last = (w.kernel[dimension] - 1) * step < capacity ? w.kernel[dimension] : (capacity + step - 1) / step;
  }
};

// The largest elements of a run of windows so far, and the taps that have them.
template <class T>
struct Maxima {
  using W = Wide<T>;
  W best[RUN];
  std::uint32_t tap_of[RUN];

  // Looks at one tap of windows [first, last), whose elements lie `step` apart; STEP 0 stands for any.
  template <Count STEP>
  void look(const T* from, Count step, Count first, Count last, std::uint32_t tap) {
    for (Count k = first; k < last; ++k) {
      const W value = widened(from[k * (STEP != 0 ? STEP : step)]);
      const bool wins = (value > best[k]) | !(value == value);
      best[k] = wins ? value : best[k];
      tap_of[k] = wins ? tap : tap_of[k];
    }
  }
  void look(const T* from, Count step, Count first, Count last, std::uint32_t tap) {
    if (step == 1) return look<1>(from, 1, first, last, tap);
    if (step == 2) return look<2>(from, 2, first, last, tap);
    look<0>(from, step, first, last, tap);
  }
};

// `count` windows of a row, or lanes of one window: `block` is its input, from the first lane on.
template <class T>
void pool_run(T* y, Writer& writer, const T* block, const Windows& w, const Walk& walk, Count count) {
  const bool in_rows = w.inner == 1;
  const Extents& corner = walk.corner();
  const Inside deep(w, 0, corner[0]), high(w, 1, corner[1]);
  Maxima<T> maxima;
  std::fill_n(maxima.best, count, -std::numeric_limits<Wide<T>>::infinity());
  for (Count k = 0; k < count; ++k) {  // where nothing is larger than that, the first tap inside counts
    const Inside wide(w, 2, in_rows ? corner[2] + k * w.stride[2] : corner[2]);
    maxima.tap_of[k] = static_cast<std::uint32_t>((deep.first * w.kernel[1] + high.first) * w.kernel[2] + wide.first);
  }
  for (Count d = deep.first; d < deep.last; ++d)
    for (Count h = high.first; h < high.last; ++h)
      for (Count v = 0; v < w.kernel[2]; ++v) {
        const Count row = (corner[0] + d * w.dilation[0]) * w.input[1] + corner[1] + h * w.dilation[1];
        const Count column = corner[2] + v * w.dilation[2], step = in_rows ? w.stride[2] : 1;
        const auto tap = static_cast<std::uint32_t>((d * w.kernel[1] + h) * w.kernel[2] + v);
        if (!in_rows && (column < 0 || column >= w.input[2])) continue;
        const Count capacity = w.input[2] - column;
        const Count first = in_rows && column < 0 ? (-column + step - 1) / step : 0;
        const Count last = !in_rows || (count - 1) * step < capacity ? count : std::max<Count>(0, (capacity + step - 1) / step);
        maxima.look(block + (row * w.input[2] + column) * w.inner, step, first, last, tap);
      }
  for (Count k = 0; k < count; ++k) {
    round_to(y[k], maxima.best[k]);
    writer.put(maxima.tap_of[k]);
  }
}

template <class T>
void pool_results(T* y, std::uint8_t* codes, const T* x, const Windows& w, Count first, Count last) {
  Writer writer(codes, first, w.width());
  Walk walk(w, first / w.inner % w.results());
  const T* block = x + first / w.inner / w.results() * w.places() * w.inner;
  const bool in_rows = w.inner == 1;
  Count lane = first % w.inner;
  for (Count i = first; i < last;) {
    const Count count = std::min({in_rows ? walk.left() : w.inner - lane, last - i, RUN});
    pool_run(y + i, writer, block + lane, w, walk, count);
    i += count;
    lane = in_rows ? 0 : (lane + count) % w.inner;
    if (lane == 0 && walk.advance(in_rows ? count : 1)) block += w.places() * w.inner;
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
      walk.advance(1);
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
      const auto name = [&](Count* place, Count count, Count window, Count step) {
        for (Count k = 0; k < count; ++k) place[k] = window + k * step + distance[reader.take()];
      };
      add_blocks(static_cast<T*>(out), static_cast<const T*>(gradient), w, first, last, name);
    }, worth_a_thread(w));
  });
}

void pool_gradient_from_indices(void* out, const void* gradient, const std::int64_t* indices, const Windows& w, Float type,
                                int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    in_pieces(w.outer, 1, threads, [&](Count first, Count last) {
      const std::int64_t* next = indices + first * w.results() * w.inner;
      const auto name = [&next](Count* place, Count count, Count, Count) {
        std::copy_n(next, count, place);
        next += count;
      };
      add_blocks(static_cast<T*>(out), static_cast<const T*>(gradient), w, first, last, name);
    }, worth_a_thread(w));
  });
}

}  // namespace lowtide
