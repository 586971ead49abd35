// Setting: what decides over an operator's result and is no argument, so that its recomputation does the same: the type
// that floats have where none is named, how many threads share the work, whether oneDNN may be used and with how many
// bits of a float it multiplies, whether algorithms have to be deterministic.
//
// The program may change them between an operator's first run and its second. They are the process's, not the thread's;
// `At` changes nothing where they are as they were. Torch looks precisions up in a table, which takes longer than all
// the rest: an operator says which of them it may depend on, the others are not read.
#pragma once
#include <ATen/Context.h>
#include <c10/util/typeid.h>

#include <array>
#include <string>

namespace lowtide::shim {

// With how many bits oneDNN multiplies floats, by kind of operator.
class Precisions {
 public:
  using Which = std::uint8_t;  // bit i: that of OPERATORS[i]
  static constexpr std::array OPERATORS{at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN};

  // Those on which an operator of this name may depend.
  static Which behind(const std::string& name, bool is_pointwise);
  static Precisions present(Which which);
  bool operator==(const Precisions& other) const { return which_ == other.which_ && values_ == other.values_; }
  Which which() const { return which_; }
  // Instead of the present ones; of the same kinds.
  void enforce() const;
  // As they were set, where another one's value was not merely taken over.
  static Precisions as_set(Which which);

 private:
  Which which_ = 0;
  std::array<at::Float32Precision, OPERATORS.size()> values_{};
};

struct Setting {
  caffe2::TypeMeta floats;
  int threads = 0;
  bool mkldnn = true, gradients = false;  // grad mode was on: some operators then save more
  bool is_deterministic = false, only_warns = false, fills = true, has_fixed_kernels = false;
  Precisions precisions;

  static Setting present(Precisions::Which which);

  class At;

 private:
  void enforce(const Setting& instead_of) const;
};

class Setting::At {
 public:
  explicit At(const Setting& setting);
  At(const At&) = delete;
  At& operator=(const At&) = delete;
  ~At();

 private:
  const Setting before_, there_;
  const Precisions set_;  // to be put back
};

}  // namespace lowtide::shim
