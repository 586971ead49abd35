#include <vector>

#include "bits.hpp"
#include "expect.hpp"
#include "random.hpp"

using namespace lowtide;

namespace {

using Bits = std::vector<std::uint8_t>;

bool bit(const Bits& bits, Count i) { return (bits[static_cast<std::size_t>(i / 8)] >> (i % 8) & 1) != 0; }

void answers_are_packed_in_order_by_any_number_of_threads() {
  Random dice(1);
  for (const Count count : {0, 1, 7, 8, 63, 64, 65, 1000, 300000}) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x) value = static_cast<float>(dice.below(9) - 4);
    for (const int threads : {1, 2, 5}) {
      Bits bits(static_cast<std::size_t>((count + 7) / 8), 0xaa);
      pack_answers(bits.data(), x.data(), count, Float::f32, Question::within, -1, 3, threads);
      for (Count i = 0; i < count; ++i) EXPECT(bit(bits, i) == (x[static_cast<std::size_t>(i)] > -1 && x[static_cast<std::size_t>(i)] < 3));
      if (count % 8 != 0) EXPECT(bits.back() >> (count % 8) == 0);
    }
  }
}

void flags_come_back() {
  Random dice(2);
  for (const Count count : {1, 8, 71, 200001}) {
    Bits flags(static_cast<std::size_t>(count)), again(flags.size()), bits(static_cast<std::size_t>((count + 7) / 8));
    for (std::uint8_t& flag : flags) flag = static_cast<std::uint8_t>(dice.below(2));
    pack_flags(bits.data(), flags.data(), count, 3);
    unpack_flags(again.data(), bits.data(), count, 2);
    EXPECT(again == flags);
  }
}

void gradients_may_overwrite_themselves() {
  const Count count = 1003;
  Bits bits(static_cast<std::size_t>((count + 7) / 8), 0b01010101);
  std::vector<double> gradient(static_cast<std::size_t>(count), -3.0);
  mask_gradient(gradient.data(), gradient.data(), bits.data(), count, 8, 2);
  scale_gradient(gradient.data(), gradient.data(), bits.data(), count, Float::f64, 0.5, 7.0, 2);
  for (Count i = 0; i < count; ++i) EXPECT(gradient[static_cast<std::size_t>(i)] == (i % 2 == 0 ? -1.5 : 0.0));
  EXPECT(bits_as<std::uint64_t>(gradient[1]) == 0);  // what is masked is +0
}

template <class T>
T of(float value) {
  T to;
  round_to(to, value);
  return to;
}

void short_floats_round_to_nearest_and_ties_to_even() {
  EXPECT(of<BFloat16>(1.0f).bits == 0x3f80 && of<BFloat16>(1.00390625f).bits == 0x3f80 && of<BFloat16>(1.01171875f).bits == 0x3f82);
  EXPECT(of<Half>(65519.0f).bits == 0x7bff && of<Half>(65520.0f).bits == 0x7c00 && of<Half>(-0.0f).bits == 0x8000);
  EXPECT(of<Half>(0x1p-25f).bits == 0 && of<Half>(0x1.8p-25f).bits == 1 && of<Half>(0x1p-24f).bits == 1);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {  // every short float survives
    const Half half{static_cast<std::uint16_t>(bits)};
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    if (widened(half) == widened(half)) EXPECT(of<Half>(widened(half)).bits == bits);
    if (widened(brain) == widened(brain)) EXPECT(of<BFloat16>(widened(brain)).bits == bits);
  }
}

}  // namespace

int main() {
  answers_are_packed_in_order_by_any_number_of_threads();
  flags_come_back();
  gradients_may_overwrite_themselves();
  short_floats_round_to_nearest_and_ties_to_even();
  return TEST_RESULT;
}
