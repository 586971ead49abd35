// Costs: what the engine is told that an operator costs, in whole nanoseconds, from its tensors' sizes alone.
#pragma once
#include <ATen/core/stack.h>

#include "eager/ids.hpp"
#include "operators.hpp"

namespace lowtide::shim {

// Bytes that it reads and writes: those of each tensor among the last `count` of the stack.
Bytes bytes_among(const torch::jit::Stack& stack, std::size_t count);

eager::Nanoseconds cost_of(const Operator& op, Bytes read_B, Bytes made_B, std::int64_t flops);

}  // namespace lowtide::shim
