// Fallback: every operator of a thread that is intercepted comes to its runtime.
//
// A boxed fallback is registered on a dispatch key that lies below autograd and Python's modes, and above the backends;
// no tensor has it. A thread that is intercepted includes the key for itself; operators that a kernel calls in turn do
// not come again. The key is DispatchKey::Fake, which torch keeps for fake tensors and has no fallback for yet:
// fallback_objection() asks before one is registered, which would end the process otherwise. Up to torch 2.12 the key
// lies above Python's instead: there an operator that a mode or a subclass in Python has to see is handed to it by the
// fallback, because on torch's own path to Python the key would be left out of what is called from there.
#pragma once
#include "runtime.hpp"

namespace lowtide::shim {

// Why the fallback cannot be used here, or an empty text.
std::string fallback_objection();
// Registers it, once in a process.
void register_fallback();
// This thread's operators go to the runtime; null: they run as they are.
void intercept(Runtime* runtime);
Runtime* intercepting();

}  // namespace lowtide::shim
