#include "eviction_manager.hpp"

#include <algorithm>
#include <chrono>

namespace lowtide::eager {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr std::uint64_t EVICTED = 1, RERAN = 2;

}  // namespace

EvictionManager::EvictionManager(Ledger& ledger, Capacity& capacity, Policy& policy, Executor& executor, Options options)
    : ledger_(ledger),
      capacity_(capacity),
      policy_(policy),
      executor_(executor),
      options_(options),
      neighbourhood_(ledger, policy.neighbourhood()),
      scene_{ledger, neighbourhood_, capacity, 0, &executor} {
  ledger_.set_witness(this);
}

EvictionManager::~EvictionManager() { ledger_.set_witness(nullptr); }

// Calls

bool EvictionManager::enter(std::uint64_t name, Slice<ValueId> inputs, Slice<ValueId> read) {
  policy_.began(scene_, name, read);
  for (ValueId input : inputs)
    if (!ledger_[input].is_resident()) return false;
  for (ValueId input : inputs) {
    ledger_.touch(input);
    ledger_.pin(input);
  }
  return true;
}

CallId EvictionManager::record(const CallSpec& spec, Slice<Bytes> offsets_B) {
  const CallId id = ledger_.add(spec);
  ledger_.advance(spec.cost_ns);
  over_.assign(offsets_B.size(), NO_VALUE);
  for (const Consumed& c : spec.consumed)
    over_[static_cast<std::size_t>(c.output)] = ledger_[spec.inputs[static_cast<std::size_t>(c.input)]].root;
  // In the order in which DTR's simulator files them: the first one last.
  const std::size_t count = offsets_B.size();
  for (std::size_t k = 1; k <= count; ++k) {
    const std::size_t i = k % count;
    const ValueId made = ledger_.call(id).outputs[i].value;
    if (over_[i] != NO_VALUE)
      take_over(over_[i], made);
    else
      ledger_.place(made, offsets_B[i]);
    ledger_.touch(made);
  }
  policy_.ended(scene_, id);
  return id;
}

void EvictionManager::used(std::uint64_t name, Slice<ValueId> read, Nanoseconds cost_ns) {
  ledger_.advance(cost_ns);
  const auto is_leaf = [&](ValueId input) { return ledger_.root_of(input).is_leaf(); };
  if (!std::all_of(read.begin(), read.end(), is_leaf)) policy_.used(scene_, name, read, cost_ns);
}

void EvictionManager::leave(Slice<ValueId> inputs) {
  for (ValueId input : inputs) {
    const ValueId root = ledger_[input].root;
    ledger_.unpin(root);
    const Value& v = ledger_[root];
    if (v.pins == 0 && !v.alive) let_go(root, policy_.sheds());
  }
}

// Handles

void EvictionManager::died(ValueId root) {
  ledger_.set_alive(root, false);
  for (ValueId view : ledger_[root].views) ledger_.set_alive(view, false);
  neighbourhood_.died(root);
  policy_.died(scene_, root);
  if (ledger_[root].pins == 0) let_go(root, true);
}

void EvictionManager::vanished(ValueId root) {
  died(root);
  if (!ledger_.holds(root) || !ledger_[root].is_resident()) return;
  ledger_.displace(root);  // it is pinned, and its bytes went all the same
  neighbourhood_.evicted(root);
}

void EvictionManager::commit(ValueId root) {
  const bool is_new = !ledger_[root].is_leaf();
  if (is_new) policy_.settled(scene_, root);
  if (is_new) neighbourhood_.becomes_leaf(root);
  ledger_.commit(root);
}

void EvictionManager::let_go(ValueId root, bool sheds) {
  if (options_.forgets) {
    views_ = ledger_[root].views;
    for (auto view = views_.rbegin(); view != views_.rend(); ++view) ledger_.settle(*view);
    ledger_.settle(root);
  }
  const Value& v = ledger_[root];
  if (sheds && v.serial >= 0 && v.is_resident() && !v.is_leaf()) give_up(root);
}

void EvictionManager::value_leaves(ValueId value) {
  const Value& v = ledger_[value];
  if (v.root == value) {
    neighbourhood_.leaves(value);
    if (v.is_resident() && v.size_B > 0) executor_.release(value);
  } else {
    neighbourhood_.view_leaves(value);
  }
  executor_.forget_value(value);
}

void EvictionManager::call_leaves(CallId call) { executor_.forget_call(call); }

// Capacity

bool EvictionManager::make_free(Bytes need_B) {
  const Clock::time_point start = Clock::now();
  const std::int64_t before = statistics_.evictions;
  bool fits = capacity_.fits(need_B);
  while (!fits) {
    if (policy_.slides() && capacity_.capacity_B() - capacity_.in_use_B() >= capacity_.reserved_for(need_B) && slide(need_B)) {
      fits = true;
      break;
    }
    victims_.clear();
    policy_.choose(scene_, need_B, victims_);
    if (victims_.empty()) {
      if (!policy_.slides_at_last() || scene_.stuck) break;
      fits = slide(need_B);
      scene_.stuck = !fits;
      continue;
    }
    for (ValueId victim : victims_) evict(victim);
    fits = capacity_.fits(need_B);
  }
  scene_.stuck = false;
  ++statistics_.searches;
  statistics_.search_s += seconds_since(start);
  if (statistics_.evictions > before) {
    ++statistics_.samples;
    statistics_.free_shares +=
        static_cast<double>(capacity_.capacity_B() - capacity_.in_use_B()) / static_cast<double>(capacity_.capacity_B());
  }
  return fits;
}

Bytes EvictionManager::allocate(Bytes size_B, std::uint64_t tag, Nanoseconds cost_ns) {
  if (size_B == 0) return 0;
  const End end = policy_.end_for(cost_ns, size_B);
  const Bytes offset_B = capacity_.allocate(size_B, end, tag);
  if (offset_B != NOWHERE) return offset_B;
  return make_free(size_B) ? capacity_.allocate(size_B, end, tag) : NOWHERE;
}

void EvictionManager::evict(ValueId root) {
  const Bytes size_B = ledger_[root].size_B;
  ++statistics_.evictions;
  statistics_.evicted_B += size_B;
  note(EVICTED, ledger_[root].serial);
  if (policy_.sends(scene_, root) && executor_.send(root)) {
    ledger_.set_on_host(root, true);
    ledger_.displace(root);
    ++statistics_.sends;
    statistics_.sent_B += size_B;
  } else {
    give_up(root);
  }
  policy_.evicted(scene_, root);
}

template <class SlideBlocks>
void EvictionManager::slide_with(const SlideBlocks& slide_blocks) {
  const auto movable = [&](ValueId id) { return ledger_[id].is_resident() && executor_.is_movable(id); };
  const auto relocate = [&](ValueId id, Bytes from_B, Bytes to_B) {
    if (!executor_.relocate(id, from_B, to_B)) return false;
    ledger_.move(id, to_B);
    return true;
  };
  const Slide slid = slide_blocks(movable, relocate);
  statistics_.moves += slid.moves;
  statistics_.moved_B += slid.moved_B;
  scene_.moved_B += slid.moved_B;
}

bool EvictionManager::slide(Bytes need_B) {
  slide_with([&](const auto& movable, const auto& relocate) { return capacity_.slide_for(need_B, movable, relocate); });
  return capacity_.fits(need_B);
}

void EvictionManager::compact() {
  slide_with([&](const auto& movable, const auto& relocate) { return capacity_.compact(movable, relocate); });
}

void EvictionManager::give_up(ValueId root) {
  if (ledger_[root].size_B > 0) executor_.release(root);
  ledger_.displace(root);
  neighbourhood_.evicted(root);
}

// What handles of the old content mean is the new one from now on.
void EvictionManager::take_over(ValueId old, ValueId made) {
  ledger_.set_alive(old, false);
  for (ValueId view : ledger_[old].views) ledger_.set_alive(view, false);
  ledger_.take_over(old, made);
  if (ledger_[made].size_B > 0) capacity_.set_tag(ledger_[made].offset_B, tag_of(made));
  neighbourhood_.evicted(old);
}

// Recoveries

// Whether a call that reads the value may write over it: nobody else waits for its content.
bool EvictionManager::is_spare(ValueId input) const {
  const Value& root = ledger_.root_of(input);
  return root.pins == 1 && !root.alive && !root.is_leaf();
}

void EvictionManager::recompute(CallId id, ValueId wanted, Slice<char> keep, Slice<ValueId> over, Slice<Bytes> offsets_B) {
  ledger_.advance(ledger_.call(id).cost_ns);
  ++statistics_.recomputations;
  statistics_.recompute_ns += ledger_.call(id).cost_ns;
  scene_.recompute_ns += ledger_.call(id).cost_ns;
  note(RERAN, ledger_.call(id).serial);
  const std::vector<Output>& outputs = ledger_.call(id).outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (over[i] != NO_VALUE && !keep[i]) give_up(over[i]);
  const auto adopt = [&](std::size_t i) {
    const ValueId made = outputs[i].value;
    if (over[i] != NO_VALUE)
      take_over(over[i], made);
    else
      ledger_.place(made, offsets_B[i]);
    if (ledger_[made].root != made) return;
    neighbourhood_.restored(made);
    policy_.restored(scene_, made);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (keep[i] && outputs[i].value != wanted) adopt(i);
  adopt(static_cast<std::size_t>(ledger_[wanted].output));
}

void EvictionManager::fetched(ValueId root, Bytes offset_B) {
  ledger_.set_on_host(root, false);
  ledger_.place(root, offset_B);
  ++statistics_.fetches;
  statistics_.fetched_B += ledger_[root].size_B;
  policy_.restored(scene_, root);
}

void EvictionManager::forget_statistics() {
  statistics_ = EvictionStatistics();
  scene_.weighed = 0;
}

void EvictionManager::note(std::uint64_t kind, std::int64_t serial) {
  note(kind);
  note(static_cast<std::uint64_t>(serial));
  note(static_cast<std::uint64_t>(ledger_.clock()));
}

}  // namespace lowtide::eager
