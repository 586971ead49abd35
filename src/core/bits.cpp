#include "bits.hpp"

namespace lowtide {

namespace {

constexpr Count BLOCK = 64;  // elements whose answers lie in one small array in between; a multiple of 8

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bits are gathered from words whose first byte is the lowest"
#endif

// Eight bytes of 0 or 1 as the bits of one byte, the first lowest. No two of the product's terms meet in one bit.
std::uint8_t gathered(const std::uint8_t* flags) {
  std::uint64_t together;
  std::memcpy(&together, flags, sizeof together);
  return static_cast<std::uint8_t>((together * 0x0102040810204080u) >> 56);
}

// The reverse: byte i of `flags` is bit i, 0 or 1. A byte that has its bit left reaches 128 by the addition.
void spread(std::uint8_t* flags, std::uint8_t byte) {
  const std::uint64_t copies = byte * 0x0101010101010101u & 0x8040201008040201u;
  const std::uint64_t ones = ((copies + 0x00406070787c7e7fu) >> 7) & 0x0101010101010101u;
  std::memcpy(flags, &ones, sizeof ones);
}

// Packs [first, last) where answer(i) is 0 or 1; `first` is a multiple of 8.
template <class Answer>
void pack(std::uint8_t* bits, Count first, Count last, const Answer& answer) {
  std::uint8_t flags[BLOCK];
  Count i = first;
  for (; i + BLOCK <= last; i += BLOCK) {
    for (Count k = 0; k < BLOCK; ++k) flags[k] = answer(i + k);
    for (Count k = 0; k < BLOCK; k += 8) bits[(i + k) / 8] = gathered(flags + k);
  }
  for (; i < last; i += 8) {
    for (Count k = 0; k < 8; ++k) flags[k] = i + k < last ? answer(i + k) : std::uint8_t{0};
    bits[i / 8] = gathered(flags);
  }
}

// Calls use(i, n, flags) for runs of at most BLOCK elements of [first, last), flags 0 or 1; `first` is a multiple of 8.
template <class Use>
void unpack(const std::uint8_t* bits, Count first, Count last, const Use& use) {
  std::uint8_t flags[BLOCK];
  Count i = first;
  for (; i + BLOCK <= last; i += BLOCK) {
    for (Count k = 0; k < BLOCK; k += 8) spread(flags + k, bits[(i + k) / 8]);
    use(i, BLOCK, flags);
  }
  if (i == last) return;
  for (Count k = 0; i + k < last; k += 8) spread(flags + k, bits[(i + k) / 8]);
  use(i, last - i, flags);
}

// out[i] = value(gradient[i], flag of i) for [first, last). Through a small array: `out` may be `gradient`, and the
// compiler need not ask.
template <class T, class Value>
void convert(T* out, const T* gradient, const std::uint8_t* bits, Count count, int threads, const Value& value) {
  in_pieces(count, BLOCK, threads, [=](Count first, Count last) {
    unpack(bits, first, last, [=](Count i, Count n, const std::uint8_t* flags) {
      T near[BLOCK];
      for (Count k = 0; k < n; ++k) near[k] = value(gradient[i + k], flags[k]);
      std::memcpy(out + i, near, static_cast<std::size_t>(n) * sizeof(T));
    });
  });
}

template <class T, class Ask>
void pack_by(std::uint8_t* bits, const T* x, Count count, int threads, const Ask& ask) {
  in_pieces(count, BLOCK, threads, [=](Count first, Count last) {
    pack(bits, first, last, [=](Count i) { return static_cast<std::uint8_t>(ask(widened(x[i]))); });
  });
}

template <class T>
void pack_typed(std::uint8_t* bits, const T* x, Count count, Question question, Wide<T> low, Wide<T> high, int threads) {
  using W = Wide<T>;
  // Bitwise operators instead of && and ||: no branches, so that the loop is one of vectors.
  switch (question) {
    case Question::above: return pack_by(bits, x, count, threads, [=](W v) { return !(v <= low); });
    case Question::greater: return pack_by(bits, x, count, threads, [=](W v) { return v > low; });
    case Question::within: return pack_by(bits, x, count, threads, [=](W v) { return (v > low) & (v < high); });
  }
}

template <class Word>
void mask_words(Word* out, const Word* gradient, const std::uint8_t* bits, Count count, int threads) {
  convert(out, gradient, bits, count, threads,
          [](Word g, std::uint8_t flag) { return static_cast<Word>(g & static_cast<Word>(Word{0} - Word{flag})); });
}

template <class T>
T product(T gradient, Wide<T> factor) {
  T rounded;
  round_to(rounded, static_cast<Wide<T>>(widened(gradient) * factor));
  return rounded;
}

}  // namespace

void pack_answers(std::uint8_t* bits, const void* x, Count count, Float type, Question question, double low, double high,
                  int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    pack_typed(bits, static_cast<const T*>(x), count, question, static_cast<Wide<T>>(low), static_cast<Wide<T>>(high), threads);
  });
}

void pack_flags(std::uint8_t* bits, const std::uint8_t* flags, Count count, int threads) {
  in_pieces(count, BLOCK, threads, [=](Count first, Count last) {
    pack(bits, first, last, [=](Count i) { return static_cast<std::uint8_t>(flags[i] != 0); });
  });
}

void unpack_flags(std::uint8_t* flags, const std::uint8_t* bits, Count count, int threads) {
  in_pieces(count, BLOCK, threads, [=](Count first, Count last) {
    unpack(bits, first, last,
           [=](Count i, Count n, const std::uint8_t* found) { std::memcpy(flags + i, found, static_cast<std::size_t>(n)); });
  });
}

void mask_gradient(void* out, const void* gradient, const std::uint8_t* bits, Count count, int item_B, int threads) {
  const auto run = [&](auto word) {
    using Word = decltype(word);
    mask_words(static_cast<Word*>(out), static_cast<const Word*>(gradient), bits, count, threads);
  };
  if (item_B == 2) run(std::uint16_t{});
  if (item_B == 4) run(std::uint32_t{});
  if (item_B == 8) run(std::uint64_t{});
}

void scale_gradient(void* out, const void* gradient, const std::uint8_t* bits, Count count, Float type, double on, double off,
                    int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    const auto factor_on = static_cast<Wide<T>>(on), factor_off = static_cast<Wide<T>>(off);
    convert(static_cast<T*>(out), static_cast<const T*>(gradient), bits, count, threads,
            [=](T g, std::uint8_t flag) { return product(g, flag != 0 ? factor_on : factor_off); });
  });
}

void mask_and_scale_gradient(void* out, const void* gradient, const std::uint8_t* bits, Count count, Float type, double on,
                             int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    const auto factor = static_cast<Wide<T>>(on);
    convert(static_cast<T*>(out), static_cast<const T*>(gradient), bits, count, threads,
            [=](T g, std::uint8_t flag) { return flag != 0 ? product(g, factor) : T{}; });
  });
}

void scale_gradient_by_flags(void* out, const void* gradient, const std::uint8_t* flags, Count count, Float type, double on,
                             double off, int threads) {
  with_float(type, [&](auto zero) {
    using T = decltype(zero);
    const auto factor_on = static_cast<Wide<T>>(on), factor_off = static_cast<Wide<T>>(off);
    T* const to = static_cast<T*>(out);
    const T* const from = static_cast<const T*>(gradient);
    in_pieces(count, BLOCK, threads, [=](Count first, Count last) {
      for (Count i = first; i < last; ++i) to[i] = product(from[i], flags[i] != 0 ? factor_on : factor_off);
    });
  });
}

}  // namespace lowtide
