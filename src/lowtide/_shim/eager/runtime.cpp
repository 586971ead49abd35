#include "runtime.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>

// From libtorch_cpu; torch/csrc/autograd would bring in half of autograd.
namespace torch::autograd {
int get_current_graph_task_id();
}

namespace lowtide::shim {

using eager::NO_VALUE;

namespace {

constexpr Bytes LARGER = 4;  // a hole that did not do grows by this part of it

// Frees bytes for the slab's requests, as long as its runtime is there.
class Relief final : public Pressure {
 public:
  explicit Relief(Runtime& runtime) : runtime_(runtime) {}
  bool relieve(Bytes size_B, bool) override { return runtime_.relieve(size_B); }

 private:
  Runtime& runtime_;
};

}  // namespace

Runtime::Runtime(const Gates& gates, Slab& slab, Options options)
    : gates_(gates),
      slab_(slab),
      options_(std::move(options)),
      bodies_(gates, slab),
      capacity_(slab),
      policy_(eager::make_policy(options_.policy, options_.policy_options)),
      manager_(ledger_, capacity_, *policy_, *this),
      diary_(options_.records) {
  operators_.set_silence(options_.silence);
}

Runtime::~Runtime() { close(); }

void Runtime::open() { slab_.set_pressure(std::make_shared<Relief>(*this)); }

void Runtime::close() {
  if (is_over_) return;
  is_over_ = true;
  slab_.set_pressure(nullptr);
  const Lock lock(mutex_);
  take_deaths();
  bodies_.end();
}

Bytes Runtime::restore_all() {
  Lock lock(mutex_);
  sweep();
  if (is_spoilt_) return 0;
  std::vector<std::pair<std::int64_t, ValueId>> alive;
  for (std::size_t i = 0; i < ledger_.value_slots(); ++i) {
    const auto value = static_cast<ValueId>(i);
    if (ledger_.holds(value) && ledger_[value].alive) alive.emplace_back(ledger_[value].serial, value);
  }
  std::sort(alive.begin(), alive.end());
  std::vector<std::pair<std::int64_t, ValueId>> late;
  const auto is_there = [&](const auto& item) {
    return ledger_.holds(item.second) && ledger_[item.second].serial == item.first && ledger_[item.second].alive;
  };
  for (const auto& item : alive) {
    if (!is_there(item)) continue;
    try {
      commit(item.second, lock);
    } catch (const c10::OutOfMemoryError&) {
      late.push_back(item);
    }
  }
  Bytes adjacent_B = 0;
  gates_.suspend();
  try {
    for (const auto& item : late) {
      if (!is_there(item)) continue;
      adjacent_B += ledger_[item.second].size_B;
      commit(item.second, lock);
    }
  } catch (...) {
    gates_.resume();
    throw;
  }
  gates_.resume();
  statistics_.spilled_B += adjacent_B;
  return adjacent_B;
}

void Runtime::take_deaths() {
  if (!slab_.has_deaths()) return;
  for (const std::uint64_t death : slab_.take_deaths()) {
    const bool kept = (death & Slab::KEPT) != 0;
    const ValueId value = eager::value_of(death & ~Slab::KEPT);
    if (!ledger_.holds(value) || bodies_[value].seen == nullptr) continue;
    const eager::Value& v = ledger_[value];
    diary_.note("died", {}, {v.serial});
    const bool has_bytes = kept || bodies_[value].own != nullptr;  // a recomputation was faster than the report
    bodies_.died(value, kept, v.offset_B, v.size_B);
    if (has_bytes)
      manager_.died(value);
    else
      manager_.vanished(value);
  }
}

void Runtime::sweep() {
  bodies_.visit_expired([&](ValueId value) {
    diary_.note("died", {}, {ledger_[value].serial});
    bodies_.died(value, false, 0, 0);
    manager_.died(value);
  });
  take_deaths();
}

bool Runtime::relieve(Bytes size_B) {
  const Lock lock(mutex_);
  sweep();
  const bool made = manager_.make_free(size_B);
  moving_.clear();
  if (!made) shortage_ = short_of(size_B);
  return made;
}

// Makes one hole while no kernel runs: everything may move, so any eviction helps. False: all is not enough.
bool Runtime::make_hole(Bytes size_B) {
  const std::vector<ValueId> before = std::exchange(running_, {});
  sweep();
  std::vector<ValueId> victims;
  bool fits = capacity_.fits(size_B) || (policy_->slides_at_last() && manager_.make_free(size_B));  // what moves cost is weighed
  while (!fits) {
    if (capacity_.capacity_B() - capacity_.in_use_B() >= capacity_.reserved_for(size_B) && manager_.slide(size_B)) {
      fits = true;
      break;
    }
    victims.clear();
    policy_->choose(manager_.scene(), size_B, victims);
    if (victims.empty()) {
      ValueId oldest = NO_VALUE;
      for (const ValueId value : ledger_.candidates())
        if (ledger_[value].pins == 0 && (oldest == NO_VALUE || ledger_[value].filed < ledger_[oldest].filed)) oldest = value;
      if (oldest != NO_VALUE) victims.push_back(oldest);
    }
    if (victims.empty()) {
      manager_.slide(capacity_.capacity_B() - capacity_.in_use_B());
      break;
    }
    for (const ValueId victim : victims) manager_.evict(victim);
    fits = capacity_.fits(size_B);
  }
  running_ = before;
  moving_.clear();
  return fits;
}

// A kernel has failed for want of bytes: makes a larger hole than the last one was for its next try, or refuses.
Bytes Runtime::hole_for_another(Bytes hole_B, bool is_clean, const std::string& name) {
  const Shortage found = shortage_ ? *shortage_ : short_of(0);
  if (!is_clean) refuse(found.need_B, name);
  // What it gives back before it ends may cut the hole: then a larger one.
  Bytes wanted_B = std::max(found.own_B + capacity_.reserved_for(found.need_B), hole_B + hole_B / LARGER);
  if (!make_hole(wanted_B)) {
    wanted_B = slab_.arena().statistics().largest_hole_B;
    if (wanted_B <= hole_B) refuse(found.need_B, name);
  }
  shortage_.reset();
  ++statistics_.retries;
  return wanted_B;
}

// Asked while blocks slide, under the arena's own lock: a storage that another thread releases must not die then.
bool Runtime::is_movable(ValueId value) {
  const Body& body = bodies_[value];
  auto storage = body.hold();
  if (storage == nullptr) return false;
  moving_.push_back(std::move(storage));
  return may_move(value, body, *moving_.back());
}

// What was held for a slide, or by a policy that asked what may move, would keep the bytes.
void Runtime::release(ValueId value) {
  moving_.clear();
  bodies_.release(value);
}

bool Runtime::may_move(ValueId value) {
  const Body& body = bodies_[value];
  const auto storage = body.hold();
  return storage != nullptr && may_move(value, body, *storage);
}

bool Runtime::may_move(ValueId value, const Body& body, const Storage& storage) const {
  return !body.fixed && body.aside == nullptr && !gates_.is_dropped(storage) &&
         std::find(running_.begin(), running_.end(), value) == running_.end() && gates_.objection(storage).empty();
}

bool Runtime::relocate(ValueId value, Bytes from_B, Bytes to_B) {
  auto* const base = static_cast<char*>(slab_.base());
  const auto storage = bodies_[value].hold();
  if (storage == nullptr) return false;
  std::memmove(base + to_B, base + from_B, storage->nbytes());
  gates_.rebase(*storage, base + to_B);
  return true;
}

void Runtime::forget_call(CallId call) { closures_.give_back(ledger_.call(call).closure); }

bool Runtime::is_learning() {
  return at::GradMode::is_enabled() || torch::autograd::get_current_graph_task_id() != -1;
}

void Runtime::optimizer_began() {
  const Lock lock(mutex_);
  in_optimizer_ = true;
  step_ends();
}

void Runtime::optimizer_ended() {
  const Lock lock(mutex_);
  in_optimizer_ = false;
}

void Runtime::step_ends() {
  if (!is_open_) return;
  is_open_ = is_begun_ = false;
  const Nanoseconds recompute_ns = manager_.statistics().recompute_ns;
  statistics_.steps.push_back({statistics_.cost_ns - step_cost_ns_, recompute_ns - step_recompute_ns_});
  longest_step_ns_ = std::max(longest_step_ns_, statistics_.steps.back().cost_ns);
  step_cost_ns_ = statistics_.cost_ns;
  step_recompute_ns_ = recompute_ns;
  sweep();
  manager_.step_ended();
}

void Runtime::look_for_thrashing(Lock& lock) {
  constexpr Nanoseconds TIMES = 10;
  const Nanoseconds step_ns = std::max(longest_step_ns_, statistics_.cost_ns - step_cost_ns_);
  if (has_thrashed_ || step_ns == 0 || manager_.statistics().recompute_ns - step_recompute_ns_ <= TIMES * step_ns) return;
  has_thrashed_ = true;
  lock.unlock();
  options_.thrashes();
  lock.lock();
}

void Runtime::tell(Lock& lock) {
  if (newcomers_.empty()) return;
  const std::vector<at::Tensor> told = std::exchange(newcomers_, {});
  lock.unlock();
  for (const at::Tensor& parameter : told) options_.met_parameter(parameter);
}

Shortage Runtime::short_of(Bytes need_B) {
  return shortage(ledger_, bodies_, capacity_, need_B, slab_.arena().statistics().largest_hole_B);
}

void Runtime::refuse(Bytes need_B, const std::string& name) {
  const Shortage found = shortage_ && shortage_->need_B == need_B ? *shortage_ : short_of(need_B);
  shortage_.reset();
  const std::string who = waits_ == nullptr ? name : name.empty() ? *waits_ : name + "', recomputed for '" + *waits_;
  C10_THROW_ERROR(OutOfMemoryError, found.text(capacity_.capacity_B(), who));
}

std::vector<Diary::Entry> Runtime::take_diary() {
  const Lock lock(mutex_);
  return diary_.take();
}

RuntimeStatistics Runtime::statistics() {
  const Lock lock(mutex_);
  return statistics_;
}

eager::EvictionStatistics Runtime::eviction_statistics() {
  const Lock lock(mutex_);
  return manager_.statistics();
}

std::int64_t Runtime::weighed() {
  const Lock lock(mutex_);
  return manager_.weighed();
}

}  // namespace lowtide::shim
