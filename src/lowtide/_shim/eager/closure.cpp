#include "closure.hpp"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>

namespace lowtide::shim {

namespace {

at::Tensor tensor_of(const Closure& closure, const Ref& ref, c10::Storage storage) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), ref.keys, ref.dtype);
  const std::int64_t* shape = closure.shapes.data() + ref.shape;
  const auto dims = static_cast<std::size_t>(ref.dims);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides({shape, dims}, {shape + dims, dims}, ref.offset);
  return tensor;
}

c10::Storage nothing() {
  return c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)),
                      c10::GetAllocator(c10::DeviceType::CPU), true);  // a result may be written there: out=
}

at::Tensor number(const Ref& ref, const at::Scalar& scalar) {
  at::Tensor tensor = at::detail::scalar_tensor_static(scalar, c10::typeMetaToScalarType(ref.dtype), c10::Device(c10::DeviceType::CPU));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void put(c10::IValue& argument, std::int32_t element, at::Tensor tensor) {
  if (element < 0) {
    argument = std::move(tensor);
  } else if (argument.isTensorList()) {
    argument.toTensorList().set(static_cast<std::size_t>(element), std::move(tensor));
  } else {
    argument.toOptionalTensorList().set(static_cast<std::size_t>(element), std::move(tensor));
  }
}

// Lists of tensors are the record's own, emptied: every run gets one of its own.
c10::IValue fresh(const c10::IValue& argument) {
  if (argument.isTensorList()) return argument.toTensorList().copy();
  if (argument.isOptionalTensorList()) return argument.toOptionalTensorList().copy();
  return argument;
}

}  // namespace

void Closure::clear() {
  op = nullptr;
  arguments.clear();
  refs.clear();
  shapes.clear();
  draw.reset();
  inputs.clear();
  outputs.clear();
}

void rebuild(const Closure& closure, BytesOf bytes_of, torch::jit::Stack& stack) {
  stack.clear();
  for (const c10::IValue& argument : closure.arguments) stack.push_back(fresh(argument));
  for (const Ref& ref : closure.refs) {
    c10::IValue& argument = stack[static_cast<std::size_t>(ref.argument)];
    put(argument, ref.element,
        ref.input == Ref::NUMBER ? number(ref, argument.toScalar())
                                 : tensor_of(closure, ref, ref.input < 0 ? nothing() : bytes_of(ref.input)));
  }
}

std::uint64_t Closures::take() {
  if (unused_.empty()) {
    closures_.emplace_back();
    return closures_.size() - 1;
  }
  const std::uint64_t number = unused_.back();
  unused_.pop_back();
  return number;
}

void Closures::give_back(std::uint64_t number) {
  closures_[number].clear();
  unused_.push_back(number);
}

}  // namespace lowtide::shim
