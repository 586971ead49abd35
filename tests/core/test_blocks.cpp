#include <cmath>
#include <limits>
#include <vector>

#include "blocks.hpp"
#include "expect.hpp"
#include "random.hpp"

using namespace lowtide;

namespace {

void elements_come_back_within_half_a_scale() {
  Random dice(1);
  for (const Count count : {0, 1, 255, 256, 257, 1003, 200001}) {
    std::vector<float> x(static_cast<std::size_t>(count)), again(x.size());
    for (float& value : x) value = static_cast<float>(dice.below(2001) - 1000) / 37;
    for (const int threads : {1, 3}) {
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(compressed_B(count)), 0xaa);
      compress(packed.data(), x.data(), count, Float::f32, threads);
      decompress(again.data(), packed.data(), count, Float::f32, threads);
      for (std::size_t i = 0; i < x.size(); ++i) EXPECT(std::fabs(again[i] - x[i]) <= 1000.0f / 37 / 254 * 1.0001f);
      for (std::size_t i = x.size(); i < static_cast<std::size_t>(codes_B(count)); ++i) EXPECT(packed[i] == 0);
    }
  }
}

void a_block_of_more_than_numbers_has_none() {
  std::vector<double> x(600, 1.0), again(x.size());
  x[300] = std::numeric_limits<double>::infinity();
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(compressed_B(600)));
  compress(packed.data(), x.data(), 600, Float::f64, 2);
  decompress(again.data(), packed.data(), 600, Float::f64, 2);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT(i / 256 == 1 ? std::isnan(again[i]) : again[i] == 1.0);
}

}  // namespace

int main() {
  elements_come_back_within_half_a_scale();
  a_block_of_more_than_numbers_has_none();
  return TEST_RESULT;
}
