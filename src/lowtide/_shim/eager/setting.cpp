#include "setting.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>

namespace lowtide::shim {

Setting Setting::present() {
  return {c10::get_default_dtype(), at::get_num_threads(), at::globalContext().userEnabledMkldnn(),
          at::GradMode::is_enabled()};
}

void Setting::enforce(const Setting& instead_of) const {
  if (floats != instead_of.floats) c10::set_default_dtype(floats);
  if (threads != instead_of.threads) at::set_num_threads(threads);
  if (mkldnn != instead_of.mkldnn) at::globalContext().setUserEnabledMkldnn(mkldnn);
  if (gradients != instead_of.gradients) at::GradMode::set_enabled(gradients);
}

Setting::At::At(const Setting& setting) : before_(present()), there_(setting) { there_.enforce(before_); }

Setting::At::~At() { before_.enforce(there_); }

}  // namespace lowtide::shim
