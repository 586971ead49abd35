// One operator of the program in the runtime.
#include <ATen/core/List.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "pass.hpp"

namespace lowtide::shim {

using eager::NO_VALUE;

namespace {

// What means the same in a recomputation. Lists are of one kind: the first item tells.
bool is_ordinary(const c10::IValue& value) {
  if (value.isList()) {
    const auto items = value.toListRef();
    return items.empty() || items[0].isTensor() || items[0].isNone() || items[0].isScalar() || items[0].isString();
  }
  return value.isNone() || value.isTensor() || value.isScalar() || value.isString() || value.isDevice() ||
         value.isGenerator();
}

// A device whose memory the budget does not reach; tensors without bytes lie nowhere.
bool is_beyond(c10::Device device) {
  return device.type() != c10::DeviceType::CPU && device.type() != c10::DeviceType::Meta;
}

[[noreturn]] C10_NOINLINE void refuse_device(const std::string& op, c10::Device device) {
  C10_THROW_ERROR(Error, "lowtide: the operator '" + op + "' has met " + device.str() + ", and lowtide.eager keeps a "
                  "budget of CPU memory alone yet: train with lowtide.fit there, or keep this loop on the CPU. The "
                  "operator has not run.");
}

bool is_symbol(const c10::IValue& value) { return value.isSymInt() || value.isSymFloat() || value.isSymBool(); }

template <class List>
bool holds(const List& list, ValueId value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <class List>
std::int32_t place_of(const List& list, ValueId value) {
  return static_cast<std::int32_t>(std::find(list.begin(), list.end(), value) - list.begin());
}

bool holds_storage(const c10::SmallVectorImpl<Storage*>& list, const Storage* storage) {
  return std::find(list.begin(), list.end(), storage) != list.end();
}

std::optional<at::Generator> given_generator(const torch::jit::Stack& stack, std::size_t arguments) {
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i)
    if (stack[i].isGenerator()) return stack[i].toGenerator();
  return std::nullopt;
}

// A list of as many empty places.
c10::IValue without_tensors(const c10::IValue& list) {
  if (list.isTensorList()) {
    c10::List<at::Tensor> places;
    places.resize(list.toListRef().size());
    return places;
  }
  if (list.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> places;
    places.resize(list.toListRef().size());
    return places;
  }
  return list;
}

at::Scalar number_in(const c10::TensorImpl& tensor) {
  const void* p = tensor.data();
  const auto type = c10::typeMetaToScalarType(tensor.dtype());
  if (type == at::kDouble) return *static_cast<const double*>(p);
  if (type == at::kLong) return *static_cast<const std::int64_t*>(p);
  if (type == at::kBool) return *static_cast<const bool*>(p);
  return *static_cast<const c10::complex<double>*>(p);
}

// Inside, operators of this thread come to the fallback again.
struct Unfolding {
  Unfolding() { c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Fake, false); }
  Unfolding(const Unfolding&) = delete;
  Unfolding& operator=(const Unfolding&) = delete;
  ~Unfolding() { c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Fake, true); }
};

}  // namespace

void Runtime::run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  Lock lock(mutex_);
  const Operator& op = operators_.of(handle);
  if (op.is_composite) {
    lock.unlock();
    const Unfolding unfolding;
    handle.redispatchBoxed(keys, &stack);
    return;
  }
  if (op.is_view) {
    if (op.arguments > 0) look_for_parameter(stack[stack.size() - op.arguments], lock);
    lock.unlock();
    handle.redispatchBoxed(keys, &stack);
    return;
  }
  if (diary_.is_on()) {
    sweep();
    diary_.note("settle");
  } else {
    take_deaths();
  }
  Pass pass(op, keys);
  look_at(pass, stack);
  if (!is_begun_) look_for_beginning(pass);
  for (ValueId& value : pass.inputs) {
    if (!bodies_.is_stale(value)) continue;
    const ValueId renewed = renew(value, lock);
    std::replace(pass.written.begin(), pass.written.end(), value, renewed);
    value = renewed;
  }
  for (const ValueId value : pass.inputs)
    if (!pass.is_spared || !holds(pass.written, value)) pass.read.push_back(value);
  waits_ = &op.name;
  try {
    enter(op.hash, {pass.inputs.data(), pass.inputs.size()}, {pass.read.data(), pass.read.size()}, lock);
  } catch (...) {
    waits_ = nullptr;
    throw;
  }
  waits_ = nullptr;
  try {
    if (!pass.written.empty()) before_writing(pass, lock);
    if (op.is_random) pass.draw.emplace(given_generator(stack, op.arguments));
    capture(pass, stack);
    if (diary_.is_on()) measure(stack, stack.size() - op.arguments, pass.extents, true);
    attempt(pass, stack, lock);
    note(pass, stack);
    if (!pass.is_recorded) manager_.used(op.hash, {pass.read.data(), pass.read.size()}, 0);
    if (diary_.is_on()) write_down(pass, stack);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (pass.closure) closures_.give_back(*pass.closure);
    manager_.leave({pass.inputs.data(), pass.inputs.size()});
    throw;
  }
  manager_.leave({pass.inputs.data(), pass.inputs.size()});
  if (!is_open_ && !in_optimizer_) is_open_ = is_learning();
  if (!newcomers_.empty()) tell(lock);
}

// A step begins in earnest with the first operator that reads a parameter: the last step's gradients and batch are gone
// by then. What there is lies where that step happened to leave it, and a step that begins otherwise goes otherwise. So
// one that follows a rehearsal begins with it slid together: then guided steps that are alike evict alike.
void Runtime::look_for_beginning(const Pass& pass) {
  if (in_optimizer_ || !is_learning()) return;
  if (std::none_of(pass.inputs.begin(), pass.inputs.end(), [&](ValueId value) { return bodies_[value].parameter; })) return;
  is_begun_ = true;
  if (!was_full() || !policy_->begins_compacted()) return;
  sweep();
  manager_.compact();
  moving_.clear();
}

// A parameter may be met by a view of it first, which is none.
void Runtime::look_for_parameter(const c10::IValue& argument, Lock& lock) {
  if (!argument.isTensor() || !argument.toTensor().defined()) return;
  const c10::TensorImpl& tensor = *argument.toTensor().unsafeGetTensorImpl();
  if (!tensor.requires_grad() || !is_plain(tensor) || !is_parameter(tensor) || bodies_.find(storage_of(tensor)) != NO_VALUE) return;
  take_deaths();
  value_of(tensor);
  tell(lock);
  if (!lock.owns_lock()) lock.lock();
}

void Runtime::look_at(Pass& pass, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - pass.op.arguments;
  const bool unsaid = !pass.op.hidden_writes.empty() &&
                      (pass.op.only_if < 0 || stack[first + static_cast<std::size_t>(pass.op.only_if)].toBool());
  pass.records = pass.op.is_known && !is_stepping();
  for (std::size_t i = 0; i < pass.op.arguments; ++i) {
    const c10::IValue& argument = stack[first + i];
    if (argument.isDevice() && is_beyond(argument.toDevice())) refuse_device(pass.op.name, argument.toDevice());
    if (!argument.isTensor() && !argument.isList()) {
      pass.records = pass.records && is_ordinary(argument) && !is_symbol(argument);
      continue;
    }
    pass.records = pass.records && is_ordinary(argument);
    const int position = static_cast<int>(i);
    const bool is_written = pass.op.communicates || holds(pass.op.writes, position) ||
                            (unsaid && holds(pass.op.hidden_writes, position));
    visit_tensors(argument, [&](const c10::TensorImpl& whole, std::int32_t element) {
      if (whole.is_wrapped_number()) {
        pass.records = pass.records && element < 0;
        return;
      }
      if (!whole.is_python_dispatch() && is_beyond(whole.device())) refuse_device(pass.op.name, whole.device());
      pass.records = pass.records && is_plain(whole);
      visit_parts(whole, [&](const c10::TensorImpl& tensor) {
        if (!has_bytes(tensor)) return;
        const ValueId value = value_of(tensor);
        if (value == NO_VALUE) return;
        if (!holds(pass.inputs, value)) pass.inputs.push_back(value);
        if (is_written && !holds(pass.written, value)) pass.written.push_back(value);
      });
    });
  }
  pass.is_spared = unsaid && !pass.op.spare.empty() && !pass.written.empty();
}

void Runtime::before_writing(Pass& pass, Lock& lock) {
  const auto leaves = std::count_if(pass.written.begin(), pass.written.end(),
                                    [&](ValueId value) { return ledger_[value].is_leaf(); });
  const bool has_more = pass.op.makes || static_cast<std::size_t>(leaves) < pass.written.size();
  pass.records = pass.records && !(pass.op.is_out && pass.written.size() > 1);
  if (leaves > 0 && has_more && !pass.is_spared) pass.records = false;  // a recomputation would write there once more
  const bool keeps = pass.records && !pass.is_spared;
  for (const ValueId value : pass.written) {
    if (!keeps) commit(value, lock);
    if (!ledger_[value].is_leaf()) continue;
    settle_dependents(value, lock);
    if (bodies_[value].parameter) step_ends();
  }
  if (pass.op.communicates)  // whoever is told to read or write there later has the address
    for (const ValueId value : pass.written) bodies_[value].fixed = true;
}

// Digests of what a foreign operator's schema says it leaves alone.
void Runtime::look_before(Pass& pass) {
  if (!pass.op.is_foreign) return;
  for (const ValueId value : pass.inputs) {
    const Body& body = bodies_[value];
    const auto storage = holds(pass.written, value) || body.aside != nullptr ? nullptr : body.hold();
    if (storage != nullptr) pass.untouched.emplace_back(value, digest_of(*storage));
  }
}

// What was computed from an argument before it was written cannot be recomputed any more: nothing may go on from here.
void Runtime::look_after(const Pass& pass) {
  for (const auto& [value, digest] : pass.untouched) {
    const auto storage = bodies_[value].hold();
    if (storage == nullptr || digest_of(*storage) == digest) continue;
    is_spoilt_ = true;
    C10_THROW_ERROR(Error, "lowtide: the operator '" + pass.op.name + "' has written to an argument that its schema does "
                    "not mark as written, so results that were computed from the old content cannot be computed again. "
                    "Declare what it writes, with mutates_args= in torch.library.custom_op or \"Tensor(a!)\" in the "
                    "schema, or run it outside lowtide.eager. The parameters are as far as this step got.");
  }
}

void Runtime::capture(Pass& pass, const torch::jit::Stack& stack) {
  if (!pass.records) return;
  pass.closure = closures_.take();
  Closure& closure = closures_[*pass.closure];
  closure.op = &pass.op;
  closure.keys = pass.keys;
  closure.draw = pass.draw;
  closure.setting = Setting::present(pass.op.precisions);
  const std::size_t first = stack.size() - pass.op.arguments;
  measure(stack, first, closure.inputs, true);
  for (std::size_t i = 0; i < pass.op.arguments; ++i) {
    const c10::IValue& argument = stack[first + i];
    const auto position = static_cast<std::int32_t>(i);
    if (pass.is_spared && holds(pass.op.spare, position)) {
      closure.arguments.emplace_back();
      continue;
    }
    if (!argument.isTensor() && !argument.isList()) {
      closure.arguments.push_back(argument);
      continue;
    }
    closure.arguments.push_back(argument.isTensor() ? c10::IValue(at::Tensor()) : without_tensors(argument));
    visit_tensors(argument, [&](const c10::TensorImpl& tensor, std::int32_t element) {
      const auto dims = static_cast<std::int32_t>(tensor.dim());
      Ref ref{position, element, Ref::NO_BYTES, dims, tensor.storage_offset(),
              static_cast<std::uint32_t>(closure.shapes.size()), tensor.dtype(), tensor.key_set()};
      if (tensor.is_wrapped_number()) {
        ref.input = Ref::NUMBER;
        closure.arguments.back() = number_in(tensor);
      } else if (const ValueId value = bodies_.find(storage_of(tensor)); value != NO_VALUE) {
        ref.input = place_of(pass.read, value);
      }
      const auto sizes = tensor.sizes(), strides = tensor.strides();
      closure.shapes.insert(closure.shapes.end(), sizes.begin(), sizes.end());
      closure.shapes.insert(closure.shapes.end(), strides.begin(), strides.end());
      closure.refs.push_back(ref);
    });
  }
}

void Runtime::note(Pass& pass, torch::jit::Stack& stack) {
  if (slab_.has_deaths()) take_deaths();
  const auto has_other_bytes = [&](ValueId value) { return bodies_[value].seen == nullptr; };
  if (pass.closure && std::any_of(pass.written.begin(), pass.written.end(), has_other_bytes))
    closures_.give_back(*std::exchange(pass.closure, std::nullopt));
  c10::SmallVector<Storage*, 4> made;
  c10::SmallVector<std::pair<std::int32_t, std::int32_t>, 4> places;
  c10::SmallVector<eager::Consumed, 2> consumed;
  if (pass.closure && !pass.is_spared)
    for (const ValueId value : pass.written)
      if (!ledger_[value].is_leaf()) {
        consumed.push_back({place_of(pass.inputs, value), static_cast<Index>(made.size())});
        places.emplace_back(-1 - place_of(pass.inputs, value), -1);
        made.push_back(bodies_[value].seen);
      }
  const std::size_t first = stack.size() - pass.op.returns;
  for (std::size_t i = 0; i < pass.op.returns; ++i)
    visit_tensors(stack[first + i], [&](const c10::TensorImpl& whole, std::int32_t element) {
      visit_parts(whole, [&](const c10::TensorImpl& tensor) {
        if (!has_bytes(tensor)) return;
        Storage* storage = storage_of(tensor);
        if (storage->nbytes() == 0 || bodies_.find(storage) != NO_VALUE || holds_storage(made, storage)) return;
        if (!pass.closure || !is_plain(whole) || bodies_.offset_of(*storage) == eager::NOWHERE) {
          const ValueId value = keep(*storage);
          bodies_[value].fixed = bodies_[value].fixed || pass.op.communicates;
          if (!pass.closure) pass.kept.emplace_back(ledger_[value].serial, ledger_[value].size_B);
          else diary_.note("leaf", {}, {}, {{ledger_[value].serial, ledger_[value].size_B}});
          return;
        }
        places.emplace_back(static_cast<std::int32_t>(i), element);
        made.push_back(storage);
      });
    });
  if (made.empty()) {
    if (pass.closure) closures_.give_back(*std::exchange(pass.closure, std::nullopt));
    return;
  }
  c10::SmallVector<eager::Made, 4> specs;
  c10::SmallVector<Bytes, 4> offsets_B;
  for (Storage* storage : made) {
    const auto size_B = static_cast<Bytes>(storage->nbytes());
    specs.push_back({size_B});
    offsets_B.push_back(bodies_.offset_of(*storage));
  }
  Closure& closure = closures_[*pass.closure];
  closure.outputs.assign(places.begin(), places.end());
  measure(stack, first, results_, false);
  const Nanoseconds cost_ns = cost_of(pass.op.cost, closure.inputs, results_);
  eager::CallSpec spec{};
  spec.name = pass.op.hash;
  spec.cost_ns = cost_ns;
  spec.closure = *std::exchange(pass.closure, std::nullopt);
  spec.inputs = {pass.read.data(), pass.read.size()};
  spec.outputs = {specs.data(), specs.size()};
  spec.consumed = {consumed.data(), consumed.size()};
  Bytes workspace_B = pass.asked_B;
  for (std::size_t i = consumed.size(); i < specs.size(); ++i) workspace_B -= specs[i].size_B;
  if (workspace_B > 0) spec.temps_B = {&workspace_B, 1};
  const CallId call = manager_.record(spec, {offsets_B.data(), offsets_B.size()});
  pass.is_recorded = true;
  learn(pass.like, cost_ns, spec.outputs, consumed.size());
  ++statistics_.calls;
  statistics_.cost_ns += cost_ns;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const ValueId value = ledger_.call(call).outputs[i].value;
    if (i < consumed.size()) {
      const ValueId old = pass.inputs[static_cast<std::size_t>(consumed[i].input)];
      bodies_.hand_over(old, value);
      manager_.died(old);
    } else {
      bodies_.show(value, *made[i], false);
    }
  }
  if (!diary_.is_on()) return;
  Diary::Made outputs;
  Diary::Consumed over;
  for (const eager::Output& output : ledger_.call(call).outputs)
    outputs.emplace_back(ledger_[output.value].serial, output.size_B);
  for (const eager::Consumed& c : consumed) over.emplace_back(c.input, c.output);
  Diary::Serials inputs = serials({pass.read.data(), pass.read.size()});
  diary_.note("call", pass.op.name, std::move(inputs), std::move(outputs), std::move(over), cost_ns);
}

Diary::Serials Runtime::serials(Slice<ValueId> values) const {
  Diary::Serials found;
  for (const ValueId value : values) found.push_back(ledger_[value].serial);
  return found;
}

// For the diary, what an operator kept and which leaves it wrote.
void Runtime::write_down(const Pass& pass, const torch::jit::Stack& stack) {
  measure(stack, stack.size() - pass.op.returns, results_, false);
  const Nanoseconds cost_ns = cost_of(pass.op.cost, pass.extents, results_);
  const Diary::Serials inputs = serials({pass.inputs.data(), pass.inputs.size()});
  if (!pass.kept.empty()) diary_.note("kept", pass.op.name, inputs, pass.kept, {}, cost_ns);
  Diary::Made written;
  Diary::Serials only;
  for (const ValueId value : pass.written) {
    if (!ledger_[value].is_leaf() || !ledger_[value].alive) continue;
    written.emplace_back(ledger_[value].serial, 0);
    only.push_back(ledger_[value].serial);
  }
  if (!written.empty())
    diary_.note("wrote", pass.op.name, pass.is_spared ? only : inputs, std::move(written), {}, pass.is_spared ? 0 : cost_ns);
}

}  // namespace lowtide::shim
