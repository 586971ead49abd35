#include "guided.hpp"

#include <algorithm>
#include <cmath>

namespace lowtide::eager {

namespace {
constexpr double HARDLY = 1e-6;  // what is spare after this call is minded so much during it
}

Guided::Known* Guided::known(const Ledger& ledger, ValueId id) {
  const auto slot = static_cast<std::size_t>(id);
  return slot < known_.size() && known_[slot].serial == ledger[id].serial ? &known_[slot] : nullptr;
}

void Guided::touch(const Ledger& ledger, ValueId id) {
  if (Known* k = known(ledger, id)) k->last = stage_;
}

void Guided::began(Scene& scene, std::uint64_t name, Slice<ValueId> inputs) {
  stage_ = 0;
  is_inside_ = true;
  if (!foresight_) return;
  Signature signature(name);
  for (ValueId input : inputs) signature.add_size(scene.ledger.root_of(input).size_B);
  stage_ = foresight_->find(signature.value(), next_);
  if (stage_ == 0) return;
  for (ValueId input : inputs) touch(scene.ledger, scene.ledger[input].root);
}

// A call has run: on to the next one of the record. False: it is not in the record.
bool Guided::follow() {
  if (!foresight_) return false;
  if (stage_ != next_) ++divergences_;
  if (stage_ == 0) return false;
  ++followed_;
  next_ = stage_ + 1;
  return true;
}

void Guided::used(Scene&, std::uint64_t, Slice<ValueId>, Nanoseconds) {
  if (is_inside_) follow();
}

void Guided::ended(Scene& scene, CallId id) {
  AbstractTide::ended(scene, id);
  if (!follow()) return;
  Tape::Number number = foresight_->first_output(stage_);
  const Tape::Number end = number + foresight_->outputs(stage_);
  for (const Output& output : scene.ledger.call(id).outputs) {
    const ValueId made = output.value;
    if (scene.ledger[made].root != made || number == end) continue;
    const auto slot = static_cast<std::size_t>(made);
    if (slot >= known_.size()) known_.resize(slot + 1);
    known_[slot] = {scene.ledger[made].serial, number++, stage_};
  }
}

void Guided::restored(Scene& scene, ValueId id) {
  if (stage_ == 0) return;
  touch(scene.ledger, id);
  const CallId producer = scene.ledger[id].producer;
  if (producer == NO_CALL) return;
  for (const Input& input : scene.ledger.call(producer).inputs) touch(scene.ledger, scene.ledger[input.value].root);
}

void Guided::step_ended(Scene&) {
  is_inside_ = false;
  stage_ = followed_ = 0;
  next_ = 1;
  known_.clear();
}

double Guided::mind(Scene& scene, ValueId id) {
  if (is_idle(scene, id)) return 0;
  const Known* k = stage_ == 0 || !advises_ || is_doubted_ ? nullptr : known(scene.ledger, id);
  if (!k) return unguided(scene, id);
  if (candidate_.plans && foresight_->is_spare(k->number, k->last, stage_)) return k->last == stage_ ? HARDLY : 0;
  Nanoseconds distance_ns = foresight_->distance_ns(k->number, k->last, stage_);
  if (distance_ns == Foresight::STAYS) return MOST;
  if (distance_ns == Foresight::NEVER_USED) {  // only to recompute others
    if (!scene.neighbourhood.is_wanted(id)) return 0;
    distance_ns = foresight_->remaining_ns(stage_);
  }
  const double distance = std::max(1.0, static_cast<double>(distance_ns));
  return weighed(scene, id, candidate_.is_linear ? distance : std::sqrt(distance));
}

}  // namespace lowtide::eager
