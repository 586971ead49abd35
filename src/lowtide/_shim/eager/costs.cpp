#include "costs.hpp"

#include "tensors.hpp"

namespace lowtide::shim {

Bytes bytes_among(const torch::jit::Stack& stack, std::size_t count) {
  Bytes sum_B = 0;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i)
    visit_tensors(stack[i], [&](const c10::TensorImpl& tensor, std::int32_t) {
      sum_B += tensor.numel() * static_cast<Bytes>(tensor.itemsize());
    });
  return sum_B;
}

eager::Nanoseconds cost_of(const Operator&, Bytes read_B, Bytes made_B, std::int64_t flops) {
  return 2000 + (read_B + made_B) / 10 + flops / 50;
}

}  // namespace lowtide::shim
