#include "runtime.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

// From libtorch_cpu; torch/csrc/autograd would bring in half of autograd.
namespace torch::autograd {
int get_current_graph_task_id();
}

namespace lowtide::shim {

using eager::NO_VALUE;

namespace {

// Makes room for the slab's requests, as long as its runtime is there.
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
      room_(slab),
      policy_(eager::make_policy(options_.policy, options_.policy_options)),
      keeper_(ledger_, room_, *policy_, *this) {
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
  Bytes beside_B = 0;
  gates_.suspend();
  try {
    for (const auto& item : late) {
      if (!is_there(item)) continue;
      beside_B += ledger_[item.second].size_B;
      commit(item.second, lock);
    }
  } catch (...) {
    gates_.resume();
    throw;
  }
  gates_.resume();
  statistics_.spilled_B += beside_B;
  return beside_B;
}

void Runtime::take_deaths() {
  if (!slab_.has_deaths()) return;
  for (const std::uint64_t death : slab_.take_deaths()) {
    const bool kept = (death & Slab::KEPT) != 0;
    const ValueId value = eager::value_of(death & ~Slab::KEPT);
    const eager::Value& v = ledger_[value];
    bodies_.died(value, kept, v.offset_B, v.size_B);
    if (kept)
      keeper_.died(value);
    else
      keeper_.vanished(value);
  }
}

void Runtime::sweep() {
  bodies_.visit_expired([&](ValueId value) {
    bodies_.died(value, false, 0, 0);
    keeper_.died(value);
  });
  take_deaths();
}

bool Runtime::relieve(Bytes size_B) {
  const Lock lock(mutex_);
  sweep();
  const bool made = keeper_.make_room(size_B);
  moving_.clear();
  if (!made) refused_B_ = size_B;
  return made;
}

// Slides everything that may move together; whether that made the room.
bool Runtime::slide_all() {
  const std::vector<ValueId> before = std::exchange(running_, {});
  bool made = false;
  for (const Bytes size_B : {room_.capacity_B() - room_.in_use_B(), refused_B_})
    made = made || (size_B > 0 && keeper_.slide(size_B));
  running_ = before;
  moving_.clear();
  return made;
}

// Asked while blocks slide, under the arena's own lock: a storage that another thread lets go of must not die then.
bool Runtime::is_movable(ValueId value) {
  auto storage = bodies_[value].hold();
  if (storage == nullptr) return false;
  moving_.push_back(std::move(storage));
  return may_move(value);
}

bool Runtime::may_move(ValueId value) {
  const Body& body = bodies_[value];
  const auto storage = body.hold();
  return storage != nullptr && !body.fixed && body.aside == nullptr && !gates_.is_dropped(*storage) &&
         std::find(running_.begin(), running_.end(), value) == running_.end() && gates_.objection(*storage).empty();
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
  is_open_ = false;
  const Nanoseconds rerun_ns = keeper_.statistics().rerun_ns;
  statistics_.steps.push_back({statistics_.cost_ns - step_cost_ns_, rerun_ns - step_rerun_ns_});
  step_cost_ns_ = statistics_.cost_ns;
  step_rerun_ns_ = rerun_ns;
  sweep();
  keeper_.step_ended();
}

void Runtime::tell(Lock& lock) {
  if (newcomers_.empty()) return;
  const std::vector<at::Tensor> told = std::exchange(newcomers_, {});
  lock.unlock();
  for (const at::Tensor& parameter : told) options_.met_parameter(parameter);
}

namespace {

std::string in_MiB(Bytes size_B) {
  std::ostringstream text;
  text.precision(size_B < (Bytes{100} << 20) ? 2 : 0);
  text << std::fixed << static_cast<double>(size_B) / (1 << 20) << " MiB";
  return text.str();
}

}  // namespace

void Runtime::refuse(Bytes need_B, const std::string& name) {
  Bytes homes_B = 0, leaves_B = 0, pinned_B = 0, values_B = 0;
  for (std::size_t i = 0; i < ledger_.value_slots(); ++i) {
    const auto value = static_cast<ValueId>(i);
    if (!ledger_.holds(value) || !ledger_[value].is_resident()) continue;
    const eager::Value& v = ledger_[value];
    values_B += v.size_B;
    (v.home ? homes_B : v.is_leaf() ? leaves_B : v.pins > 0 ? pinned_B : need_B) += v.home || v.is_leaf() || v.pins > 0 ? v.size_B : 0;
  }
  const Bytes others_B = std::max<Bytes>(0, room_.in_use_B() - values_B);
  const std::string who = name.empty() ? "code between operators" : "'" + name + "'";
  C10_THROW_ERROR(
      OutOfMemoryError,
      "lowtide: the budget of " + in_MiB(room_.capacity_B()) + " is too small here: " + who + " asked for " +
          in_MiB(need_B) + " (" + std::to_string(need_B) + " B), and nothing more can be evicted. Held: " +
          in_MiB(homes_B) + " of parameters, gradients and optimizer state; " + in_MiB(leaves_B) +
          " of inputs and of what was kept because a parameter was written; " + in_MiB(pinned_B) +
          " that the operator reads; " + in_MiB(others_B) + " of its own results and workspaces. The largest hole is " +
          in_MiB(slab_.arena().statistics().largest_hole_B) + " of " + in_MiB(room_.capacity_B() - room_.in_use_B()) +
          " free. Raise the budget, make the batch smaller, or let go of tensors of earlier steps.");
}

RuntimeStatistics Runtime::statistics() {
  const Lock lock(mutex_);
  return statistics_;
}

eager::KeeperStatistics Runtime::keeper_statistics() {
  const Lock lock(mutex_);
  return keeper_.statistics();
}

std::int64_t Runtime::weighed() {
  const Lock lock(mutex_);
  return keeper_.weighed();
}

}  // namespace lowtide::shim
