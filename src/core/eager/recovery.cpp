#include "recovery.hpp"

#include "eviction_manager.hpp"

namespace lowtide::eager {

void Recovery::begin(Slice<ValueId> wanted) { push(NO_CALL, NO_VALUE, wanted); }

void Recovery::push(CallId call, ValueId wanted, Slice<ValueId> inputs) {
  Ledger& ledger = manager_.ledger_;
  Frame frame{call, wanted, pinned_.size(), absent_.size(), absent_.size(), 0};
  for (ValueId input : inputs) ledger.touch(input);
  for (ValueId input : inputs) {
    if (ledger[input].is_resident()) {
      ledger.pin(input);
      pinned_.push_back(input);
    } else {
      absent_.push_back(input);
      if (awaited_.size() < ledger.value_slots()) awaited_.resize(ledger.value_slots());
      ++awaited_[static_cast<std::size_t>(input)];
    }
  }
  frame.absent_end = absent_.size();
  frames_.push_back(frame);
}

Job Recovery::next() {
  Ledger& ledger = manager_.ledger_;
  while (!frames_.empty()) {
    Frame& frame = frames_.back();
    if (frame.next < frame.absent_end) {
      const ValueId value = absent_[frame.next];
      if (ledger[value].is_resident()) {  // by a frame of its own, or together with an output that another one wanted
        ledger.pin(value);
        pinned_.push_back(value);
        --awaited_[static_cast<std::size_t>(value)];
        ++frame.next;
      } else if (ledger.root_of(value).on_host) {
        return job_ = {Job::Kind::fetch, NO_CALL, ledger[value].root};
      } else {
        const CallId call = ledger[value].producer;
        inputs_.clear();
        for (const Input& input : ledger.call(call).inputs) inputs_.push_back(input.value);
        push(call, value, inputs_);
      }
      continue;
    }
    if (frame.call == NO_CALL) {  // all is there, and remains pinned
      frames_.pop_back();
      pinned_.clear();
      absent_.clear();
      break;
    }
    prepare(frame);
    return job_ = {Job::Kind::recompute, frame.call, NO_VALUE};
  }
  return job_ = {};
}

void Recovery::prepare(const Frame& frame) {
  const Ledger& ledger = manager_.ledger_;
  const Call& call = ledger.call(frame.call);
  over_.assign(call.outputs.size(), NO_VALUE);
  for (const Consumed& c : call.consumed) {
    const ValueId input = call.inputs[static_cast<std::size_t>(c.input)].value;
    if (manager_.is_spare(input)) over_[static_cast<std::size_t>(c.output)] = ledger[input].root;
  }
}

bool Recovery::keeps(std::size_t i) const {
  const Ledger& ledger = manager_.ledger_;
  const Frame& frame = frames_.back();
  const Output& output = ledger.call(frame.call).outputs[i];
  if (!ledger.makes(output) || ledger[output.value].is_resident() || ledger.root_of(output.value).on_host) return false;
  return output.value == frame.wanted || ledger.root_of(output.value).alive || !manager_.policy_.sheds() ||
         is_awaited(output.value);
}

void Recovery::done(Slice<Bytes> offsets_B) {
  if (job_.kind == Job::Kind::fetch) {
    manager_.fetched(job_.value, offsets_B[0]);
    return;
  }
  const Frame frame = frames_.back();
  keep_.resize(over_.size());
  for (std::size_t i = 0; i < keep_.size(); ++i) keep_[i] = keeps(i);
  manager_.recompute(frame.call, frame.wanted, keep_, over_, offsets_B);
  inputs_.clear();
  for (const Input& input : manager_.ledger_.call(frame.call).inputs) inputs_.push_back(input.value);
  manager_.leave(inputs_);
  pinned_.resize(frame.pinned);
  absent_.resize(frame.absent);
  frames_.pop_back();
}

void Recovery::abandon() {
  for (const Frame& frame : frames_)
    for (std::size_t i = frame.next; i < frame.absent_end; ++i) --awaited_[static_cast<std::size_t>(absent_[i])];
  while (!frames_.empty()) {
    inputs_.assign(pinned_.begin() + static_cast<std::ptrdiff_t>(frames_.back().pinned), pinned_.end());
    pinned_.resize(frames_.back().pinned);
    frames_.pop_back();
    manager_.leave(inputs_);
  }
  absent_.clear();
  job_ = {};
}

bool Recovery::is_awaited(ValueId value) const {
  return static_cast<std::size_t>(value) < awaited_.size() && awaited_[static_cast<std::size_t>(value)] > 0;
}

}  // namespace lowtide::eager
