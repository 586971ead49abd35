// Tensors among the arguments and results of a boxed operator.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>

namespace lowtide::shim {

inline c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.unsafe_storage().unsafeGetStorageImpl();
}

// A tensor with plain strided memory of the CPU.
inline bool has_cpu_bytes(const c10::TensorImpl& tensor) {
  return tensor.has_storage() && tensor.is_cpu() && !tensor.is_python_dispatch() && storage_of(tensor) != nullptr;
}

// A tensor that is a look at bytes of its own storage; one that stands for zeros has none.
inline bool has_bytes(const c10::TensorImpl& tensor) {
  return has_cpu_bytes(tensor) && !tensor.key_set().has(c10::DispatchKey::ZeroTensor);
}

// One that sizes, strides and a type describe: a closure can make it again. One that is read conjugated or negated is:
// its keys say so, and a closure keeps them. A quantized or nested tensor has more to it.
inline bool is_plain(const c10::TensorImpl& tensor) {
  return has_bytes(tensor) && !tensor.is_quantized() && !tensor.is_nested();
}

inline bool is_parameter(const c10::TensorImpl& tensor) {
  return tensor.requires_grad() &&
         at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
                        const_cast<c10::TensorImpl*>(&tensor)))
             .is_leaf();
}

// Calls visit(TensorImpl&, element) for every defined tensor that an argument is or lists; element -1: it is one.
template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) visit(*tensor.unsafeGetTensorImpl(), -1);
  } else if (value.isList()) {
    std::int32_t element = 0;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(*item.toTensor().unsafeGetTensorImpl(), element);
      ++element;
    }
  }
}

}  // namespace lowtide::shim
