#include "step_record.hpp"

namespace lowtide::eager {

StepRecord::Place StepRecord::place_of(const Ledger& ledger, ValueId root) {
  const auto slot = static_cast<std::size_t>(root);
  if (slot < known_.size() && known_[slot].serial == ledger[root].serial) return {known_[slot].index, known_[slot].is_leaf};
  const Place place{static_cast<std::int32_t>(leaves_B_.size()), true};
  leaves_B_.push_back(ledger[root].size_B);
  learn(ledger, root, place);
  return place;
}

void StepRecord::learn(const Ledger& ledger, ValueId root, Place place) {
  const auto slot = static_cast<std::size_t>(root);
  if (slot >= known_.size()) known_.resize(slot + 1);
  known_[slot] = {ledger[root].serial, place.index, place.is_leaf};
}

const StepRecord::Known* StepRecord::known(const Ledger& ledger, ValueId root) const {
  const auto slot = static_cast<std::size_t>(root);
  return slot < known_.size() && known_[slot].serial == ledger[root].serial ? &known_[slot] : nullptr;
}

// A death, or that it became a leaf.
void StepRecord::add(Kind kind, const Known& of) {
  events_.push_back({kind, 0, 0, 0, 0, 0, 0, static_cast<std::int32_t>(places_.size()), 0, 0, 0});
  places_.push_back({of.index, of.is_leaf});
}

void StepRecord::ended(const Ledger& ledger, CallId id) {
  const Call& call = ledger.call(id);
  const auto count = [](const auto& list) { return static_cast<std::int32_t>(list.size()); };
  Event event{Kind::ran, call.name,      call.cost_ns,    count(call.inputs), 0,
              0,         count(call.temps_B), count(places_), count(sizes_B_),    count(consumed_), count(temps_B_)};
  temps_B_.insert(temps_B_.end(), call.temps_B.begin(), call.temps_B.end());
  for (const Input& input : call.inputs) places_.push_back(place_of(ledger, ledger[input.value].root));
  std::vector<Index> place(call.outputs.size(), -1);  // among the outputs that have bytes
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const ValueId made = call.outputs[i].value;
    if (ledger[made].root != made) continue;
    learn(ledger, made, {static_cast<std::int32_t>(made_.size()), false});
    made_.push_back(made);
    made_serial_.push_back(ledger[made].serial);
    sizes_B_.push_back(call.outputs[i].size_B);
    place[i] = event.outputs++;
  }
  for (const Consumed& c : call.consumed) {
    if (place[static_cast<std::size_t>(c.output)] < 0) continue;
    consumed_.push_back({c.input, place[static_cast<std::size_t>(c.output)]});
    ++event.consumed;
    const ValueId source = ledger[call.inputs[static_cast<std::size_t>(c.input)].value].root;
    known_[static_cast<std::size_t>(source)].serial = -1;  // what is written over cannot die any more
  }
  if (event.outputs > 0) events_.push_back(event);
}

void StepRecord::used(const Ledger& ledger, std::uint64_t name, Slice<ValueId> inputs, Nanoseconds cost_ns) {
  const auto first = static_cast<std::int32_t>(places_.size());
  events_.push_back({Kind::used, name, cost_ns, static_cast<std::int32_t>(inputs.size()), 0, 0, 0, first, 0, 0, 0});
  for (ValueId input : inputs) places_.push_back(place_of(ledger, ledger[input].root));
}

void StepRecord::settled(const Ledger& ledger, ValueId root) {
  if (const Known* k = known(ledger, root); k && !k->is_leaf) add(Kind::settled, *k);
}

bool StepRecord::died(const Ledger& ledger, ValueId root) {
  const Known* k = known(ledger, root);
  if (!k) return false;
  add(Kind::died, *k);
  known_[static_cast<std::size_t>(root)].serial = -1;
  return true;
}

StepRecord::Step StepRecord::take(const Ledger& ledger, const Capacity& capacity) {
  Step step;
  std::vector<std::int64_t>& words = step.words;
  const auto leaves = static_cast<std::int64_t>(leaves_B_.size());
  const auto number_of = [&](Place place) { return 1 + place.index + (place.is_leaf ? 0 : leaves); };
  for (Bytes size_B : leaves_B_) {
    words.insert(words.end(), {Tape::LEAF, size_B});
    if (size_B > 0) step.leaves_B += capacity.reserved_for(size_B);
  }
  for (const Event& e : events_) {
    const auto first = static_cast<std::size_t>(e.first);
    if (e.kind == Kind::died || e.kind == Kind::settled) {
      words.insert(words.end(), {e.kind == Kind::died ? Tape::DIED : Tape::SETTLED, number_of(places_[first])});
      continue;
    }
    words.insert(words.end(), {e.kind == Kind::ran ? Tape::RAN : Tape::USED, static_cast<std::int64_t>(e.name), e.cost_ns});
    words.push_back(e.inputs);
    if (e.kind == Kind::ran) words.insert(words.end(), {e.outputs, 0, e.consumed, e.temps});
    for (std::int32_t i = 0; i < e.inputs; ++i) words.push_back(number_of(places_[first + static_cast<std::size_t>(i)]));
    for (std::int32_t i = 0; i < e.outputs; ++i) words.push_back(sizes_B_[static_cast<std::size_t>(e.first_size + i)]);
    for (std::int32_t i = 0; i < e.consumed; ++i) {
      const Consumed& c = consumed_[static_cast<std::size_t>(e.first_consumed + i)];
      words.insert(words.end(), {c.input, c.output});
    }
    for (std::int32_t i = 0; i < e.temps; ++i) words.push_back(temps_B_[static_cast<std::size_t>(e.first_temp + i)]);
  }
  for (std::size_t i = 0; i < made_.size(); ++i) {
    const auto slot = static_cast<std::size_t>(made_[i]);
    const bool is_known = known_[slot].serial == made_serial_[i];
    if (!is_known || !ledger.holds(made_[i])) continue;
    const Value& v = ledger[made_[i]];
    if (v.serial != made_serial_[i] || !v.alive) continue;
    step.kept.push_back(1 + leaves + static_cast<std::int64_t>(i));
  }
  *this = StepRecord();
  return step;
}

}  // namespace lowtide::eager
