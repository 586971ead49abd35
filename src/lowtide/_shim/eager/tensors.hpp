// Tensors among the arguments and results of a boxed operator.
#pragma once
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
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

// One that sizes, strides and a type describe: a replay record can make it again. One that is read conjugated or
// negated is: its keys say so, and a record keeps them. A quantized or nested tensor has more to it.
inline bool is_plain(const c10::TensorImpl& tensor) {
  return has_bytes(tensor) && !tensor.is_quantized() && !tensor.is_nested();
}

inline bool is_parameter(const c10::TensorImpl& tensor) {
  return tensor.requires_grad() &&
         at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
                        const_cast<c10::TensorImpl*>(&tensor)))
             .is_leaf();
}

// Calls visit(TensorImpl&, element) for every defined tensor that an argument is or lists; element -1: it is one. Lists
// of lists, which collectives take, count as the element that the inner list is.
template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit, std::int32_t element = -1) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) visit(*tensor.unsafeGetTensorImpl(), element);
  } else if (value.isList()) {
    std::int32_t index = 0;
    for (const c10::IValue& item : value.toListRef()) visit_tensors(item, visit, element < 0 ? index++ : element);
  }
}

// Calls visit(TensorImpl&) for every tensor whose storage a tensor reads: itself, and those that it is made of.
template <class Visit>
void visit_parts(const c10::TensorImpl& tensor, const Visit& visit) {
  const auto part = [&](const at::Tensor& of_it) {
    if (of_it.defined()) visit(*of_it.unsafeGetTensorImpl());
  };
  if (tensor.is_python_dispatch()) return;
  if (tensor.is_sparse()) {
    const auto& sparse = static_cast<const at::SparseTensorImpl&>(tensor);
    part(sparse.indices());
    part(sparse.values());
  } else if (tensor.is_sparse_compressed()) {
    const auto& sparse = static_cast<const at::SparseCsrTensorImpl&>(tensor);
    part(sparse.compressed_indices());
    part(sparse.plain_indices());
    part(sparse.values());
  } else {
    visit(tensor);
    if (!tensor.is_nested()) return;
    const auto& nested = static_cast<const at::native::NestedTensorImpl&>(tensor);
    part(nested.get_nested_sizes());
    part(nested.get_nested_strides());
    part(nested.get_storage_offsets());
  }
}

}  // namespace lowtide::shim
