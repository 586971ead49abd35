#include "fallback.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <pthread.h>
#include <torch/library.h>

namespace lowtide::shim {

namespace {

constexpr c10::DispatchKey KEY = c10::DispatchKey::Fake, PYTHON = c10::DispatchKey::Python;

thread_local Runtime* my_runtime = nullptr;

// A mode or a subclass sees the operator, as torch would let it; but what that calls comes to the fallback.
[[maybe_unused]] void let_python_see(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr c10::DispatchKeySet up_to_python = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, PYTHON).add(PYTHON);
  const c10::impl::ExcludeDispatchKeyGuard above((c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^ up_to_python).remove(KEY));
  (*c10::impl::getGlobalPyInterpreter())->dispatch(op, stack);
}

void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  if constexpr (KEY > PYTHON)
    if (below.has(PYTHON)) return let_python_see(op, stack);
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
