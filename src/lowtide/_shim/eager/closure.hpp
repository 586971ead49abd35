// Closure: the replay record of an operator, from which it can be recomputed. It holds no tensor.
//
// A tensor among the arguments stands there as a Ref: which of the call's inputs has its bytes, and how it looks at
// them. So a view needs no call of its own, and a record keeps no bytes. Numbers that Python wrapped into tensors are
// kept as numbers, tensors without bytes as they are.
// Records are reused, with the capacity of their lists.
#pragma once
#include <ATen/core/TensorBase.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "generator.hpp"
#include "operators.hpp"
#include "setting.hpp"

namespace lowtide::shim {

// How a tensor looks at the bytes of an input.
struct Ref {
  static constexpr std::int32_t NO_BYTES = -1;  // instead of an input: it has none
  static constexpr std::int32_t NUMBER = -2;    // it stands for the number among the arguments

  std::int32_t argument;
  std::int32_t element;  // of a list; -1: the argument itself
  std::int32_t input;
  std::int32_t dims;
  std::int64_t offset;
  std::uint32_t shape;  // where its sizes and strides begin
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
};

struct Closure {
  const Operator* op = nullptr;
  c10::DispatchKeySet keys;  // what the operator was redispatched with
  c10::SmallVector<c10::IValue, 8> arguments;
  c10::SmallVector<Ref, 4> refs;
  std::vector<std::int64_t> shapes;
  Extents inputs;                      // of the tensors among them
  std::optional<Draw> draw;
  Setting setting;
  // Where the outputs are found: an argument that is written (~position), or a result (index, element or -1).
  c10::SmallVector<std::pair<std::int32_t, std::int32_t>, 2> outputs;

  void clear();
};

// The bytes of one input, as a storage that lives while the operator runs.
using BytesOf = c10::function_ref<c10::Storage(std::int32_t)>;

// The arguments, as they were, over other storages.
void rebuild(const Closure& closure, BytesOf bytes_of, torch::jit::Stack& stack);

class Closures {
 public:
  std::uint64_t take();  // the number of an empty one
  Closure& operator[](std::uint64_t number) { return closures_[number]; }
  void give_back(std::uint64_t number);

 private:
  std::deque<Closure> closures_;
  std::vector<std::uint64_t> unused_;
};

}  // namespace lowtide::shim
