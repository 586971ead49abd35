#include "generator.hpp"

namespace lowtide::shim {

namespace {

std::shared_ptr<at::CPUGeneratorImpl> state_of(at::CPUGeneratorImpl& generator) {
  const std::lock_guard<std::mutex> hold(generator.mutex_);
  return generator.clone();
}

void set_state(at::CPUGeneratorImpl& generator, at::CPUGeneratorImpl& state) {
  const std::lock_guard<std::mutex> hold(generator.mutex_);
  generator.set_engine(state.engine());
  generator.set_next_float_normal_sample(state.next_float_normal_sample());
  generator.set_next_double_normal_sample(state.next_double_normal_sample());
}

}  // namespace

Draw::Draw(const std::optional<at::Generator>& given)
    : generator_(given && given->defined() ? *given : at::detail::getDefaultCPUGenerator()), state_(state_of(source())) {}

void Draw::rewind() const { set_state(source(), *state_); }

Draw::At::At(const Draw& draw) : draw_(draw), present_(state_of(draw.source())) { draw.rewind(); }

Draw::At::~At() { set_state(draw_.source(), *present_); }

}  // namespace lowtide::shim
