#include "setting.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>

namespace lowtide::shim {

namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

Float32Precision precision(Float32Backend backend, Float32Op op) {
  return at::globalContext().float32Precision(backend, op);
}

// Whether the value of oneDNN's `op` is that of a wider scope, which is asked by changing that briefly.
bool takes_over(Float32Backend backend, Float32Op wider, Float32Op op) {
  const Float32Precision seen = precision(Float32Backend::MKLDNN, op), there = precision(backend, wider);
  const Float32Precision other = there == Float32Precision::IEEE ? Float32Precision::BF16 : Float32Precision::IEEE;
  at::globalContext().setFloat32Precision(backend, wider, other);
  const bool changes = precision(Float32Backend::MKLDNN, op) != seen;
  at::globalContext().setFloat32Precision(backend, wider, there);
  return changes;
}

bool takes_over(Float32Op op) {
  if (takes_over(Float32Backend::GENERIC, Float32Op::ALL, op)) return true;
  return !takes_over(Float32Backend::GENERIC, Float32Op::ALL, Float32Op::ALL) &&
         takes_over(Float32Backend::MKLDNN, Float32Op::ALL, op);
}

}  // namespace

Precisions::Which Precisions::behind(const std::string& name, bool is_pointwise) {
  if (is_pointwise) return 0;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  Which which = 1;
  if (has("conv")) which |= 2;
  if (has("rnn") || has("lstm") || has("gru")) which |= 4;
  return which;
}

Precisions Precisions::present(Which which) {
  Precisions found;
  found.which_ = which;
  for (std::size_t i = 0; i < OPERATORS.size(); ++i)
    if ((which >> i & 1) != 0) found.values_[i] = precision(Float32Backend::MKLDNN, OPERATORS[i]);
  return found;
}

Precisions Precisions::as_set(Which which) {
  Precisions found = present(which);
  for (std::size_t i = 0; i < OPERATORS.size(); ++i)
    if ((which >> i & 1) != 0 && takes_over(OPERATORS[i])) found.values_[i] = Float32Precision::NONE;
  return found;
}

void Precisions::enforce() const {
  for (std::size_t i = 0; i < OPERATORS.size(); ++i)
    if ((which_ >> i & 1) != 0) at::globalContext().setFloat32Precision(Float32Backend::MKLDNN, OPERATORS[i], values_[i]);
}

Setting Setting::present(Precisions::Which which) {
  const at::Context& torch = at::globalContext();
  return {c10::get_default_dtype(),
          at::get_num_threads(),
          torch.userEnabledMkldnn(),
          at::GradMode::is_enabled(),
          torch.deterministicAlgorithms(),
          torch.deterministicAlgorithmsWarnOnly(),
          torch.deterministicFillUninitializedMemory(),
          torch.deterministicMkldnn(),
          Precisions::present(which)};
}

void Setting::enforce(const Setting& instead_of) const {
  at::Context& torch = at::globalContext();
  if (floats != instead_of.floats) c10::set_default_dtype(floats);
  if (threads != instead_of.threads) at::set_num_threads(threads);
  if (mkldnn != instead_of.mkldnn) torch.setUserEnabledMkldnn(mkldnn);
  if (gradients != instead_of.gradients) at::GradMode::set_enabled(gradients);
  if (is_deterministic != instead_of.is_deterministic || only_warns != instead_of.only_warns)
    torch.setDeterministicAlgorithms(is_deterministic, only_warns);
  if (fills != instead_of.fills) torch.setDeterministicFillUninitializedMemory(fills);
  if (has_fixed_kernels != instead_of.has_fixed_kernels) torch.setDeterministicMkldnn(has_fixed_kernels);
}

Setting::At::At(const Setting& setting)
    : before_(present(setting.precisions.which())),
      there_(setting),
      set_(before_.precisions == there_.precisions ? Precisions() : Precisions::as_set(there_.precisions.which())) {
  there_.enforce(before_);
  if (set_.which() != 0) there_.precisions.enforce();
}

Setting::At::~At() {
  set_.enforce();
  before_.enforce(there_);
}

}  // namespace lowtide::shim
