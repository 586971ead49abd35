// Costs: what an operator costs, in whole nanoseconds, reckoned from its name and its tensors' sizes: the same in every
// run, on every machine. tests/oracle/costs.py has the same formula, in Python:
//
//   cost_ns = 1000 + bytes / 10 + operations / 40
//
// that is 10 GB/s, 40 Gflop/s and a microsecond per call; only the ratios matter. Costs decide what is evicted: if they
// were measured in each run, a run's decisions, and with them whether it fits, would be a matter of chance.
#pragma once
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "eager/ids.hpp"

namespace lowtide::shim {

// How an operator's work follows from its sizes.
enum class CostKind : std::uint8_t {
  bytes,
  part,  // reads of its first input no more than it writes
  slow,  // a function that is no plain arithmetic
  matmul,
  add_matmul,
  convolution,
  convolution_backward,
  attention,
  attention_backward,
  recurrent,
  recurrent_backward,
};

// Of "aten.addmm.default"; in-place forms count as the others.
CostKind cost_kind(const std::string& name);

// A tensor's sizes, as far as costs depend on them; 1 for sizes that it does not have.
struct Extent {
  std::int64_t count, first, second, last, before_last;
  std::int32_t dims;
  Bytes size_B;
};

using Extents = std::vector<Extent>;

// The tensors among arguments or results from `first` on, in order. Arguments count where they are plain.
void measure(const torch::jit::Stack& stack, std::size_t first, Extents& extents, bool only_plain);

eager::Nanoseconds cost_of(CostKind kind, const Extents& inputs, const Extents& outputs);

}  // namespace lowtide::shim
