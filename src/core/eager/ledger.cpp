#include "ledger.hpp"

#include <algorithm>

namespace lowtide::eager {

ValueId Ledger::new_value(Bytes size_B) {
  ValueId id = 0;
  if (unused_values_.empty()) {
    id = static_cast<ValueId>(values_.size());
    values_.emplace_back();
  } else {
    id = unused_values_.back();
    unused_values_.pop_back();
  }
  Value& v = at(id);
  v.serial = next_value_++;
  v.size_B = size_B;
  v.offset_B = NOWHERE;
  v.cost_ns = v.last_use = v.filed = 0;
  v.producer = NO_CALL;
  v.output = v.pins = 0;
  v.root = id;
  v.place = -1;
  v.alive = true;
  v.zone = v.on_host = false;
  v.handle = 0;
  v.readers.clear();
  v.views.clear();
  ++value_count_;
  return id;
}

CallId Ledger::new_call() {
  ++call_count_;
  if (unused_calls_.empty()) {
    calls_.emplace_back();
    return static_cast<CallId>(calls_.size()) - 1;
  }
  const CallId id = unused_calls_.back();
  unused_calls_.pop_back();
  return id;
}

ValueId Ledger::leaf(Bytes size_B, Bytes offset_B, std::uint64_t handle, bool zone) {
  const ValueId id = new_value(size_B);
  Value& v = at(id);
  v.offset_B = offset_B;
  v.handle = handle;
  v.zone = zone;
  v.last_use = clock_;
  return id;
}

CallId Ledger::add(const CallSpec& spec) {
  const CallId id = new_call();
  {
    Call& c = at_call(id);
    c.serial = next_call_++;
    c.name = spec.name;
    c.cost_ns = spec.cost_ns;
    c.closure = spec.closure;
    c.inputs.clear();
    c.outputs.clear();
    c.temps_B.assign(spec.temps_B.begin(), spec.temps_B.end());
    c.consumed.assign(spec.consumed.begin(), spec.consumed.end());
  }
  Call& c = at_call(id);
  for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
    const ValueId value = spec.inputs[i];
    std::vector<Reader>& readers = at(value).readers;
    const bool again = !readers.empty() && readers.back().call == id;
    c.inputs.push_back({value, again ? -1 : static_cast<Index>(readers.size())});
    if (!again) readers.push_back({id, static_cast<Index>(i)});
  }
  for (const Made& made : spec.outputs) {
    const ValueId value = new_value(made.size_B);
    Value& v = at(value);
    v.producer = id;
    v.output = static_cast<Index>(c.outputs.size());
    v.handle = made.handle;
    if (made.view_of != NO_VALUE) {
      v.root = at(made.view_of).root;
      at(v.root).views.push_back(value);
    }
    c.outputs.push_back({value, made.size_B});
  }
  // Each call adds to what a root costs once, however many views of it the call makes.
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    const ValueId root = at(c.outputs[i].value).root;
    bool counted = false;
    for (std::size_t j = 0; j < i; ++j) counted = counted || at(c.outputs[j].value).root == root;
    if (!counted) at(root).cost_ns += c.cost_ns;
  }
  return id;
}

void Ledger::enlist(Value& value, ValueId id) {
  if (value.place >= 0 || value.is_leaf() || value.zone || value.root != id) return;
  value.place = static_cast<Index>(candidates_.size());
  candidates_.push_back(id);
  value.filed = next_filed_++;
}

void Ledger::delist(Value& value) {
  if (value.place < 0) return;
  const ValueId last = candidates_.back();
  candidates_[static_cast<std::size_t>(value.place)] = last;
  at(last).place = value.place;
  candidates_.pop_back();
  value.place = -1;
}

void Ledger::place(ValueId id, Bytes offset_B) {
  Value& v = at(id);
  v.offset_B = offset_B;
  enlist(v, id);
}

void Ledger::displace(ValueId id) {
  Value& v = at(id);
  v.offset_B = NOWHERE;
  delist(v);
  for (ValueId view : v.views) at(view).offset_B = NOWHERE;
}

void Ledger::take_over(ValueId old, ValueId made) {
  const Bytes offset_B = at(old).offset_B;
  displace(old);
  place(made, offset_B);
}

void Ledger::set_place(ValueId id) {
  at(id).zone = true;
  delist(at(id));
}

void Ledger::commit(ValueId id) {
  Value& v = at(id);
  if (v.is_leaf()) return;
  const CallId producer = v.producer;
  Output& output = at_call(producer).outputs[static_cast<std::size_t>(v.output)];
  output.value = NO_VALUE;
  v.producer = NO_CALL;
  v.cost_ns = 0;
  delist(v);
  unsettle(producer);
  settle(id);
}

bool Ledger::is_needed(const Call& call) const {
  return std::any_of(call.outputs.begin(), call.outputs.end(),
                     [&](const Output& o) { return makes(o) && is_needed((*this)[o.value]); });
}

void Ledger::settle(ValueId id) {
  unsettled_.push_back(id);
  settle_all();
}

// For a call whose outputs may all have gone, or become leaves.
void Ledger::unsettle(CallId producer) {
  if (!is_needed(call(producer))) leave_call(producer);
}

void Ledger::settle_all() {
  if (settling_) return;  // a witness settles something while something leaves: the loop below sees to it
  settling_ = true;
  for (std::size_t next = 0; next < unsettled_.size(); ++next) {
    const ValueId id = unsettled_[next];
    const Value& v = (*this)[id];
    if (v.serial < 0 || is_needed(v)) continue;
    if (v.is_leaf())
      leave(id);
    else
      unsettle(v.producer);
  }
  unsettled_.clear();
  settling_ = false;
}

void Ledger::leave(ValueId id) {
  if (witness_ != nullptr) witness_->value_leaves(id);
  Value& v = at(id);
  delist(v);
  if (v.root != id) {
    std::vector<ValueId>& views = at(v.root).views;
    views.erase(std::find(views.begin(), views.end(), id));
  }
  v.serial = -1;
  v.offset_B = NOWHERE;
  --value_count_;
  unused_values_.push_back(id);
}

void Ledger::leave_call(CallId id) {
  if (witness_ != nullptr) witness_->call_leaves(id);
  for (const Output& output : call(id).outputs)
    if (makes(output)) leave(output.value);
  Call& c = at_call(id);
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Input input = c.inputs[i];
    drop_reader(input);
    unsettled_.push_back(input.value);
  }
  c.serial = -1;
  --call_count_;
  unused_calls_.push_back(id);
}

void Ledger::drop_reader(const Input& input) {
  if (input.place < 0) return;
  std::vector<Reader>& readers = at(input.value).readers;
  const Reader last = readers.back();
  readers[static_cast<std::size_t>(input.place)] = last;
  at_call(last.call).inputs[static_cast<std::size_t>(last.input)].place = input.place;
  readers.pop_back();
}

std::vector<ValueId> Ledger::dependents(ValueId leaf) const {
  std::vector<ValueId> found, queue{leaf};
  std::vector<char> seen(values_.size());
  seen[static_cast<std::size_t>(leaf)] = 1;
  const auto follow = [&](ValueId tensor) {
    for (const Reader& reader : (*this)[tensor].readers)
      for (const Output& output : call(reader.call).outputs) {
        if (!makes(output)) continue;
        const ValueId root = (*this)[output.value].root;
        if (seen[static_cast<std::size_t>(root)]) continue;
        seen[static_cast<std::size_t>(root)] = 1;
        queue.push_back(root);
        if ((*this)[root].alive) found.push_back(root);
      }
  };
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const ValueId source = queue[next];
    follow(source);
    for (ValueId view : (*this)[source].views) follow(view);
  }
  std::sort(found.begin(), found.end(), [&](ValueId a, ValueId b) {
    const Value &first = (*this)[a], &second = (*this)[b];
    if (first.is_resident() != second.is_resident()) return first.is_resident();
    return first.serial < second.serial;
  });
  return found;
}

std::string Ledger::check() const {
  std::size_t candidates = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const Value& v = values_[i];
    const ValueId id = static_cast<ValueId>(i);
    if (v.serial < 0) continue;
    if (v.pins < 0) return "a value has fewer than no pins";
    const bool candidate = v.is_resident() && !v.is_leaf() && !v.zone && v.root == id;
    if (candidate != v.is_candidate()) return "a value that may be evicted is no candidate, or the reverse";
    if (candidate && candidates_[static_cast<std::size_t>(v.place)] != id) return "a candidate is not in its place";
    candidates += candidate;
    if (v.root != id && v.is_resident() && !root_of(id).is_resident()) return "a view is resident without its root";
    if (!v.is_leaf() && call(v.producer).outputs[static_cast<std::size_t>(v.output)].value != id)
      return "a value is none of its producer's outputs";
    for (std::size_t k = 0; k < v.readers.size(); ++k) {
      const Input& input = call(v.readers[k].call).inputs[static_cast<std::size_t>(v.readers[k].input)];
      if (input.value != id || input.place != static_cast<Index>(k)) return "a reader does not read";
    }
  }
  return candidates == candidates_.size() ? std::string() : "there are more candidates than resident values";
}

}  // namespace lowtide::eager
