#include "fallback.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <torch/library.h>

namespace lowtide::shim {

namespace {

constexpr c10::DispatchKey KEY = c10::DispatchKey::Fake;

thread_local Runtime* my_runtime = nullptr;

void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  const c10::impl::ExcludeDispatchKeyGuard once(KEY);
  if (my_runtime == nullptr)
    op.redispatchBoxed(below, stack);
  else
    my_runtime->run(op, below, *stack);
}

}  // namespace

std::string fallback_objection() {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (dispatcher.hasBackendFallbackForDispatchKey(KEY))
    return "torch, or another library, uses the dispatch key on which lowtide would see operators";
  return "";
}

void register_fallback() {
  static torch::Library* const kept = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&pass>());
    ::pthread_atfork(nullptr, nullptr, [] { my_runtime = nullptr; });
    return library;
  }();
  (void)kept;
}

void intercept(Runtime* runtime) {
  my_runtime = runtime;
  c10::impl::tls_set_dispatch_key_included(KEY, runtime != nullptr);
}

Runtime* intercepting() { return my_runtime; }

}  // namespace lowtide::shim
