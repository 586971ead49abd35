#include "replay.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace lowtide::eager {

namespace {

struct OutOfCapacity {
  Bytes need_B, in_use_B, pinned_B;
};
struct TooSlow {};

std::unique_ptr<Capacity> capacity_of(const Rules& rules, Bytes budget_B) {
  if (rules.addresses) return std::make_unique<Addresses>(budget_B, rules.alignment_B, rules.small_B);
  return std::make_unique<Tank>(budget_B);
}

// An executor that counts, and the program that it executes.
class Player final : public Executor {
 public:
  Player(const Tape& tape, Policy& policy, Bytes budget_B, const Rules& rules)
      : tape_(tape),
        policy_(policy),
        capacity_(capacity_of(rules, budget_B)),
        manager_(ledger_, *capacity_, policy, *this, {rules.forgets}),
        recovery_(manager_),
        limit_ns_(rules.limit > 0 ? (rules.limit - 1) * static_cast<double>(tape.time_ns()) : NEVER) {}

  // As often as the policy wants; only the last time counts.
  ReplayResult play() {
    is_limited_ = false;
    for (int pass = 1; pass < policy_.passes(); ++pass) {
      const ReplayResult result = play_once();
      if (result.end != ReplayResult::End::finished) return result;
      leave();
    }
    is_limited_ = limit_ns_ != NEVER;
    return play_once();
  }

  ReplayResult play_once() {
    ReplayResult result;
    result.capacity_B = capacity_->capacity_B();
    try {
      for (const Tape::Event& event : tape_.events()) {
        result.event = &event - tape_.events().data();
        take(event);
        verify(result.event);
      }
      result.event = ReplayResult::AT_THE_END;
      for (Tape::Number number : tape_.kept()) {
        const ValueId value = at(number);
        enter(0, {&value, 1});
      }
    } catch (const OutOfCapacity& refusal) {
      result.end = ReplayResult::End::out_of_capacity;
      result.need_B = refusal.need_B;
      result.in_use_B = refusal.in_use_B;
      result.pinned_B = refusal.pinned_B;
    } catch (const TooSlow&) {
      result.end = ReplayResult::End::too_slow;
    }
    result.peak_B = capacity_->peak_B();
    result.weighed = manager_.weighed();
    result.statistics = manager_.statistics();
    return result;
  }

  void release(ValueId id) override { capacity_->free(ledger_[id].offset_B, ledger_[id].size_B); }
  bool is_movable(ValueId) override { return true; }  // no kernel is running on the bytes
  bool relocate(ValueId, Bytes, Bytes) override { return true; }
  bool send(ValueId id) override {
    release(id);
    return true;
  }

 private:
  static constexpr double NEVER = -1;
  static constexpr std::int64_t CHECK_EVERY = 16;  // events
  static constexpr std::int64_t MOST_KIN = 300;    // values, above which all pairs are too many to look at

  // A step is over: no name means anything any more, and nothing was counted.
  void leave() {
    for (Tape::Number number : tape_.kept()) {
      const ValueId value = at(number);
      manager_.leave({&value, 1});
    }
    manager_.step_ended();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const ValueId id = values_[i];
      const Value& v = ledger_[id];
      if (v.serial == serials_[i] && v.root == id && v.alive) manager_.died(id);  // its slot may be another's by now
    }
    values_.clear();
    serials_.clear();
    manager_.forget_statistics();
  }

  void number(ValueId id) {
    values_.push_back(id);
    serials_.push_back(ledger_[id].serial);
  }
  ValueId at(Tape::Number number) const { return values_[static_cast<std::size_t>(number - 1)]; }

  OutOfCapacity refusal(Bytes need_B) const { return {need_B, capacity_->in_use_B(), pinned_B()}; }

  Bytes allocate(Bytes size_B, Nanoseconds cost_ns) {
    const Bytes offset_B = manager_.allocate(size_B, NO_TAG, cost_ns);
    if (offset_B == NOWHERE) throw refusal(size_B);
    return offset_B;
  }

  // Bytes for a call, wherever `offsets_B_` says NOWHERE. Where its own blocks fence those that it still wants, though
  // the free bytes suffice or nothing else can go, once more from the start, in one hole for all of them: as the
  // runtime admits an operator.
  template <class SizeOf>
  void allocate_all(const SizeOf& size_of, Nanoseconds cost_ns) {
    wanted_.clear();
    for (std::size_t i = 0; i < offsets_B_.size(); ++i)
      if (offsets_B_[i] == NOWHERE) wanted_.push_back(i);
    const bool slides = policy_.slides() || policy_.slides_at_last();
    Bytes rest_B = 0;
    for (std::size_t i : wanted_) rest_B += reserved_B(size_of(i));
    const Bytes all_B = rest_B;
    for (std::size_t k = 0; k < wanted_.size(); ++k) {
      const std::size_t i = wanted_[k];
      const bool suffices = capacity_->capacity_B() - capacity_->in_use_B() >= rest_B;
      const bool is_fenced = k > 0 && size_of(i) > 0 && slides && suffices && !capacity_->fits(size_of(i));
      rest_B -= reserved_B(size_of(i));
      if (!is_fenced) offsets_B_[i] = manager_.allocate(size_of(i), NO_TAG, cost_ns);
      if (offsets_B_[i] != NOWHERE) continue;
      const OutOfCapacity refused = refusal(size_of(i));
      for (std::size_t before = 0; before < k; ++before) free(offsets_B_[wanted_[before]], size_of(wanted_[before]));
      if (k == 0 || !slides) throw refused;
      if (!manager_.make_free(all_B)) throw refusal(all_B);
      for (std::size_t w : wanted_) offsets_B_[w] = size_of(w) > 0 ? capacity_->allocate(size_of(w), End::low, NO_TAG) : 0;
      return;
    }
  }

  // Bytes for what a call makes, as in allocate_all(), and for its workspaces, which it gives back.
  template <class SizeOf>
  void run_kernel(const SizeOf& size_of, Slice<Bytes> temps_B, Nanoseconds cost_ns) {
    const std::size_t outputs = offsets_B_.size();
    offsets_B_.resize(outputs + temps_B.size(), NOWHERE);
    const auto size_of_any = [&](std::size_t i) { return i < outputs ? size_of(i) : temps_B[i - outputs]; };
    allocate_all(size_of_any, cost_ns);
    for (std::size_t i = outputs; i < offsets_B_.size(); ++i) free(offsets_B_[i], size_of_any(i));
    offsets_B_.resize(outputs);
  }

  Bytes reserved_B(Bytes size_B) const { return size_B > 0 ? capacity_->reserved_for(size_B) : 0; }
  void free(Bytes offset_B, Bytes size_B) {
    if (size_B > 0) capacity_->free(offset_B, size_B);
  }
  // The value has this block: who looks for victims by address finds it.
  void own(ValueId id, Bytes offset_B) {
    if (ledger_[id].size_B > 0 && ledger_[id].root == id) capacity_->set_tag(offset_B, tag_of(id));
  }

  void take(const Tape::Event& event) {
    if (event.kind == Tape::LEAF) {
      const Bytes size_B = event.number_or_size;
      const Bytes offset_B = allocate(size_B, 0);
      number(ledger_.leaf(size_B, offset_B));
      own(values_.back(), offset_B);
    } else if (event.kind == Tape::DIED) {
      manager_.died(at(event.number_or_size));
    } else if (event.kind == Tape::SETTLED) {
      commit(at(event.number_or_size));
    } else if (event.kind == Tape::USED) {
      inputs_.clear();
      for (Tape::Number number : event.inputs) inputs_.push_back(at(number));
      enter(event.name, inputs_);
      manager_.used(event.name, inputs_, event.cost_ns);
      manager_.leave(inputs_);
    } else if (event.sizes_B.empty()) {  // aliases alone
      ledger_.advance(event.cost_ns);
    } else {
      run(event);
    }
  }

  void enter(std::uint64_t name, Slice<ValueId> inputs) {
    if (!manager_.enter(name, inputs)) recover(inputs);
  }

  void recover(Slice<ValueId> wanted) {
    recovery_.begin(wanted);
    while (const Job job = recovery_.next()) {
      if (job.kind == Job::Kind::fetch) {
        offsets_B_.assign(1, allocate(ledger_[job.value].size_B, 0));
        own(job.value, offsets_B_[0]);
        recovery_.done(offsets_B_);
      } else {
        recompute(job.call);
      }
    }
  }

  void recompute(CallId id) {
    const Nanoseconds cost_ns = ledger_.call(id).cost_ns;
    const std::vector<Output>& outputs = ledger_.call(id).outputs;
    const auto is_fresh = [&](std::size_t i) {
      const ValueId made = outputs[i].value;
      return recovery_.over(i) == NO_VALUE && (made == NO_VALUE || ledger_[made].root == made);
    };
    offsets_B_.assign(outputs.size(), 0);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (is_fresh(i)) offsets_B_[i] = NOWHERE;
    run_kernel([&](std::size_t i) { return outputs[i].size_B; }, ledger_.call(id).temps_B, cost_ns);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!is_fresh(i)) continue;
      if (recovery_.keeps(i))
        own(outputs[i].value, offsets_B_[i]);
      else
        free(offsets_B_[i], outputs[i].size_B);
    }
    if (is_limited_ && static_cast<double>(manager_.statistics().recompute_ns + cost_ns) > limit_ns_) throw TooSlow();
    recovery_.done(offsets_B_);
  }

  // Nothing alive needs the leaf's content afterwards.
  void write(ValueId leaf) {
    for (ValueId id : ledger_.dependents(leaf)) commit(id);
  }

  void commit(ValueId id) {
    if (ledger_[id].is_leaf()) return;
    const Slice<ValueId> one(&id, 1);
    recover(one);
    manager_.commit(id);
    manager_.leave(one);
  }

  // One call; what it writes over that nothing recomputes remains the same value, with other bytes.
  void run(const Tape::Event& event) {
    inputs_.clear();
    for (Tape::Number number : event.inputs) inputs_.push_back(at(number));
    written_.assign(event.sizes_B.size(), NO_VALUE);
    std::size_t written = 0;
    for (const Consumed& c : event.consumed) {
      const ValueId input = inputs_[static_cast<std::size_t>(c.input)];
      if (!ledger_[input].is_leaf()) continue;
      written_[static_cast<std::size_t>(c.output)] = input;
      ++written;
    }
    for (ValueId leaf : written_)
      if (leaf != NO_VALUE) write(leaf);
    enter(event.name, inputs_);
    if (written == event.sizes_B.size()) {  // nothing new
      manager_.used(event.name, inputs_, event.cost_ns);
      for (ValueId leaf : written_) number(leaf);
    } else {
      record(event, written > 0);
    }
    manager_.leave(inputs_);
  }

  void record(const Tape::Event& event, bool writes) {
    const std::size_t count = event.sizes_B.size();
    place_.assign(count, -1);
    made_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      if (written_[i] != NO_VALUE) continue;
      place_[i] = static_cast<Index>(made_.size());
      made_.push_back({event.sizes_B[i]});
    }
    consumed_.clear();
    offsets_B_.assign(made_.size(), NOWHERE);
    for (const Consumed& c : event.consumed) {
      const Index place = place_[static_cast<std::size_t>(c.output)];
      if (place < 0) continue;
      consumed_.push_back({c.input, place});
      offsets_B_[static_cast<std::size_t>(place)] = 0;
    }
    for (const Tape::View& view : event.views) {
      const auto place = static_cast<std::size_t>(place_[static_cast<std::size_t>(view.output)]);
      made_[place].view_of = at(view.number);
      offsets_B_[place] = 0;
    }
    run_kernel([&](std::size_t i) { return made_[i].size_B; }, event.temps_B, event.cost_ns);
    CallSpec spec;
    spec.name = event.name;
    spec.cost_ns = event.cost_ns;
    spec.inputs = inputs_;
    spec.outputs = made_;
    spec.temps_B = event.temps_B;
    spec.consumed = consumed_;
    const CallId id = manager_.record(spec, offsets_B_);
    outputs_.clear();
    for (const Output& output : ledger_.call(id).outputs) outputs_.push_back(output.value);
    for (ValueId made : outputs_) own(made, ledger_[made].offset_B);
    for (std::size_t i = 0; i < count; ++i)
      number(place_[i] < 0 ? written_[i] : outputs_[static_cast<std::size_t>(place_[i])]);
    if (writes)  // recomputed, it would read what it wrote
      for (std::size_t i = 0; i < outputs_.size(); ++i) commit(outputs_[i]);
  }

  // Compiled with LOWTIDE_CHECK: the books agree with each other, and with the capacity.
  void verify([[maybe_unused]] std::int64_t event) const {
#ifdef LOWTIDE_CHECK
    if (event % CHECK_EVERY != 0) return;
    std::string broken = ledger_.check();
    Bytes resident_B = 0;
    for (std::size_t i = 0; i < ledger_.value_slots(); ++i) {
      const Value& v = ledger_[static_cast<ValueId>(i)];
      const bool has_block = v.serial >= 0 && v.is_resident() && v.size_B > 0 && v.root == static_cast<ValueId>(i);
      if (has_block) resident_B += capacity_->reserved_for(v.size_B);
    }
    if (broken.empty() && resident_B != capacity_->in_use_B()) broken = "what is resident is not what is in use";
    if (broken.empty() && ledger_.values() < MOST_KIN) broken = manager_.neighbourhood().check();
    if (!broken.empty()) {
      std::fprintf(stderr, "lowtide: the books of a replay are wrong: %s\n", broken.c_str());
      std::abort();
    }
#endif
  }

  Bytes pinned_B() const {
    Bytes sum_B = 0;
    for (std::size_t i = 0; i < ledger_.value_slots(); ++i) {
      const Value& v = ledger_[static_cast<ValueId>(i)];
      if (v.serial >= 0 && v.is_resident() && v.pins > 0) sum_B += v.size_B;
    }
    return sum_B;
  }

  const Tape& tape_;
  Policy& policy_;
  Ledger ledger_;
  std::unique_ptr<Capacity> capacity_;
  EvictionManager manager_;
  Recovery recovery_;
  double limit_ns_;  // of recomputations
  bool is_limited_ = false;
  std::vector<ValueId> values_, inputs_, written_, outputs_;  // values_: by number - 1
  std::vector<std::int64_t> serials_;                         // of values_
  std::vector<Index> place_;  // of each output among those that are new
  std::vector<Made> made_;
  std::vector<Consumed> consumed_;
  std::vector<Bytes> offsets_B_;
  std::vector<std::size_t> wanted_;
};

}  // namespace

ReplayResult replay(const Tape& tape, Policy& policy, Bytes budget_B, const Rules& rules) {
  return Player(tape, policy, budget_B, rules).play();
}

}  // namespace lowtide::eager
