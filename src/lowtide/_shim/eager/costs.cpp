#include "costs.hpp"

#include <algorithm>
#include <unordered_map>

#include "tensors.hpp"

namespace lowtide::shim {

namespace {

using Kinds = std::unordered_map<std::string, CostKind>;

constexpr std::int64_t CALL_ns = 1000, B_PER_ns = 10, OPERATIONS_PER_ns = 40, SLOW = 16;

const Kinds& kinds() {
  static const Kinds table = [] {
    Kinds made{
        {"mm", CostKind::matmul},
        {"bmm", CostKind::matmul},
        {"addmm", CostKind::add_matmul},
        {"baddbmm", CostKind::add_matmul},
        {"addbmm", CostKind::add_matmul},
        {"linear", CostKind::add_matmul},
        {"_addmm_activation", CostKind::add_matmul},
        {"convolution", CostKind::convolution},
        {"_convolution", CostKind::convolution},
        {"mkldnn_convolution", CostKind::convolution},
        {"convolution_overrideable", CostKind::convolution},
        {"convolution_backward", CostKind::convolution_backward},
        {"convolution_backward_overrideable", CostKind::convolution_backward},
        {"_scaled_dot_product_flash_attention_for_cpu", CostKind::attention},
        {"_scaled_dot_product_flash_attention", CostKind::attention},
        {"_scaled_dot_product_efficient_attention", CostKind::attention},
        {"_scaled_dot_product_flash_attention_for_cpu_backward", CostKind::attention_backward},
        {"_scaled_dot_product_flash_attention_backward", CostKind::attention_backward},
        {"_scaled_dot_product_efficient_attention_backward", CostKind::attention_backward},
        {"mkldnn_rnn_layer", CostKind::recurrent},
        {"mkldnn_rnn_layer_backward", CostKind::recurrent_backward},
    };
    for (const char* name : {"embedding", "index_select", "index", "gather", "select"}) made[name] = CostKind::part;
    for (const char* name : {"exp", "log", "tanh", "sigmoid", "erf", "gelu", "gelu_backward", "silu", "silu_backward",
                             "mish", "softplus", "elu", "pow", "_softmax", "_log_softmax", "_safe_softmax", "bernoulli",
                             "native_dropout", "normal", "uniform", "randn", "rand", "sort", "topk"})
      made[name] = CostKind::slow;
    return made;
  }();
  return table;
}

std::int64_t total_B(const Extents& extents) {
  std::int64_t sum_B = 0;
  for (const Extent& e : extents) sum_B += e.size_B;
  return sum_B;
}

// Two for each element of the result and each term of its sum.
std::int64_t product(const Extents& outputs, const Extents& inputs, std::size_t factor) {
  return !outputs.empty() && inputs.size() > factor ? 2 * outputs[0].count * inputs[factor].last : 0;
}

// Each position of the larger side meets one filter; transposed convolutions have their filters along the input.
std::int64_t convolved(const Extent& x, const Extent& weight, const Extent& y) {
  if (weight.dims == 0) return 0;
  const std::int64_t filters = std::max<std::int64_t>(1, weight.first);
  const bool straight = y.dims > 1 && y.second == filters;
  return 2 * (straight ? y : x).count * (weight.count / filters);
}

// Elements of the query by the length of the keys.
std::int64_t attended(const Extents& inputs, std::size_t query) {
  return inputs.size() > query + 1 ? inputs[query].count * inputs[query + 1].before_last : 0;
}

// Every step of every sequence meets all elements of the weights, which are the matrices among the inputs.
std::int64_t recurrent(const Extents& inputs) {
  if (inputs.empty()) return 0;
  std::int64_t weights = 0;
  for (std::size_t i = 1; i < inputs.size(); ++i) weights += inputs[i].dims == 2 ? inputs[i].count : 0;
  return inputs[0].count / std::max<std::int64_t>(1, inputs[0].last) * weights;
}

std::int64_t operations(CostKind kind, const Extents& inputs, const Extents& outputs) {
  std::int64_t sum = 0;
  switch (kind) {
    case CostKind::slow:
      for (const Extent& e : outputs) sum += SLOW * e.count;
      return sum;
    case CostKind::matmul:
      return product(outputs, inputs, 0);
    case CostKind::add_matmul:
      return product(outputs, inputs, 1);
    case CostKind::convolution:
      return inputs.size() > 1 && !outputs.empty() ? convolved(inputs[0], inputs[1], outputs[0]) : 0;
    case CostKind::convolution_backward:
      if (inputs.size() < 3) return 0;
      for (const Extent& e : outputs) sum += e.dims > 2;
      return sum * convolved(inputs[1], inputs[2], inputs[0]);
    case CostKind::attention:
      return 4 * attended(inputs, 0);
    case CostKind::attention_backward:
      return 10 * attended(inputs, 1);
    case CostKind::recurrent:
      return 2 * recurrent(inputs);
    case CostKind::recurrent_backward:
      return 4 * recurrent(inputs);
    case CostKind::bytes:
    case CostKind::part:
      return 0;
  }
  return 0;
}

}  // namespace

CostKind cost_kind(const std::string& name) {
  const std::size_t from = name.find('.') + 1;
  std::string base = name.substr(from, name.find('.', from) - from);
  auto found = kinds().find(base);
  while (found == kinds().end() && !base.empty() && base.back() == '_') {
    base.pop_back();
    if (base.empty() || base.back() != '_') found = kinds().find(base);
  }
  return found == kinds().end() ? CostKind::bytes : found->second;
}

void measure(const torch::jit::Stack& stack, std::size_t first, Extents& extents, bool only_plain) {
  extents.clear();
  for (std::size_t i = first; i < stack.size(); ++i)
    visit_tensors(stack[i], [&](const c10::TensorImpl& tensor, std::int32_t) {
      if (tensor.is_wrapped_number() || tensor.is_nested() || (only_plain && !is_plain(tensor))) return;
      const auto sizes = tensor.sizes();
      const std::size_t dims = sizes.size();
      const std::int64_t count = tensor.numel();
      extents.push_back({count, dims > 0 ? sizes[0] : 1, dims > 1 ? sizes[1] : 1, dims > 0 ? sizes[dims - 1] : 1,
                         dims > 1 ? sizes[dims - 2] : 1, static_cast<std::int32_t>(dims),
                         count * static_cast<Bytes>(tensor.itemsize())});
    });
}

eager::Nanoseconds cost_of(CostKind kind, const Extents& inputs, const Extents& outputs) {
  std::int64_t read_B = total_B(inputs);
  const std::int64_t written_B = total_B(outputs);
  if (kind == CostKind::part && !inputs.empty()) read_B += std::min(inputs[0].size_B, written_B) - inputs[0].size_B;
  return CALL_ns + (read_B + written_B) / B_PER_ns + operations(kind, inputs, outputs) / OPERATIONS_PER_ns;
}

}  // namespace lowtide::shim
