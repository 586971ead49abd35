#include "tide.hpp"

#include <algorithm>
#include <cmath>

#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

constexpr double NEARNESS = 1.5;  // how much more per byte a window may cost than scattered victims
// Of a byte, against the mean cost of making one: it is read and written, as by the cheapest calls. In all recorded
// steps, of GPUs and by the formula, these cost from a third to half of the mean.
constexpr double MOVE = 0.4;
constexpr double NS_PER_S = 1e9;
// A value of less than the capacity by this is evicted last of all, unless it is larger than small blocks are.
constexpr Bytes DUST = 8192;

Nanoseconds with_ancestors_ns(const Scene& scene, ValueId id) {
  return scene.ledger[id].cost_ns + scene.neighbourhood.ancestors_ns(id);
}

// What is in use now may be so for the last time, as a gradient is: it is not counted on.
bool is_uncertain(const Value& v) { return v.pins > 0 && v.is_candidate(); }

// What recomputing it takes, with those of evicted values that its calls need, and of uncertain ones.
Nanoseconds again_ns(const Scene& scene, ValueId id) {
  Nanoseconds sum_ns = with_ancestors_ns(scene, id);
  scene.neighbourhood.visit_parents(id, [&](ValueId parent) {
    if (is_uncertain(scene.ledger[parent])) sum_ns += with_ancestors_ns(scene, parent);
  });
  return sum_ns;
}

}  // namespace

// The values of the least cost per byte, as few as yield `missing_B`; of equal ones those filed last come first. Few
// are wanted of many, so that the heap is of those alone, the last of them on top.
class AbstractTide::Scattered {
 public:
  Scattered(std::vector<Ranked>& heap, Bytes missing_B) : heap_(heap), missing_B_(missing_B) { heap_.clear(); }
  void offer(const Ranked& added) {
    if (first_.id == NO_VALUE || goes_before(added, first_)) first_ = added;
    if (freed_B_ >= missing_B_ && (heap_.empty() || !goes_before(added, heap_.front()))) return;
    freed_B_ += added.size_B;
    heap_.push_back(added);
    std::push_heap(heap_.begin(), heap_.end(), goes_before);
    for (; freed_B_ - heap_.front().size_B >= missing_B_; heap_.pop_back()) {
      freed_B_ -= heap_.front().size_B;
      std::pop_heap(heap_.begin(), heap_.end(), goes_before);
    }
  }
  ValueId first() const { return first_.id; }
  Bytes freed_B() const { return freed_B_; }
  // In order; nothing is offered any more.
  const std::vector<Ranked>& take() {
    std::sort_heap(heap_.begin(), heap_.end(), goes_before);
    return heap_;
  }

 private:
  static bool goes_before(const Ranked& a, const Ranked& b) {
    return a.per_byte < b.per_byte || (a.per_byte == b.per_byte && a.filed > b.filed);
  }

  std::vector<Ranked>& heap_;
  Bytes missing_B_, freed_B_ = 0;
  Ranked first_{0, 0, 0, NO_VALUE};
};

void AbstractTide::choose(Scene& scene, Bytes need_B, std::vector<ValueId>& victims) {
  const Bytes reserved_B = scene.capacity.reserved_for(need_B);
  const Bytes missing_B = reserved_B - (scene.capacity.capacity_B() - scene.capacity.in_use_B());
  dust_B_ = std::min(Density::SMALL_B, scene.capacity.capacity_B() / DUST);
  forget_minds(scene);
  look_at_uncertain(scene);
  Scattered scattered(ranked_, missing_B);
  for (ValueId id : scene.ledger.candidates()) {
    const Value& v = scene.ledger[id];
    if (v.pins != 0) continue;
    ++scene.weighed;
    const double cost = minds_[static_cast<std::size_t>(id)] = mind(scene, id);
    minded_.push_back(id);
    if (v.size_B > 0) scattered.offer({cost / static_cast<double>(v.size_B), v.filed, v.size_B, id});
  }
  const ValueId cheapest = scattered.first();
  const Bytes freed_B = scattered.freed_B();
  if (cheapest == NO_VALUE) return;
  double cost = 0;
  for (const Ranked& one : scattered.take()) {
    leaving_[static_cast<std::size_t>(one.id)] = 1;
    cost += minds_[static_cast<std::size_t>(one.id)];
  }
  spans_.read(scene.capacity, [&](ValueId id) { return minds_[static_cast<std::size_t>(id)]; });
  const auto leaves = [&](ValueId id) { return leaving_[static_cast<std::size_t>(id)] != 0; };
  const auto movable = [&](ValueId id) { return scene.is_movable(id); };
  const auto moved_B = [&] { return freed_B >= missing_B ? spans_.moved_for(reserved_B, leaves, movable) : -1; };
  const Run window = spans_.cheapest(reserved_B);
  if (!window.found() && scene.capacity.has_addresses() && need_B > Density::SMALL_B) {  // small blocks have places of their own
    const auto may_leave = [&](ValueId id) { return minds_[static_cast<std::size_t>(id)] != INFINITE; };
    if (spans_.moved_for(reserved_B, may_leave, movable) < 0) return;
  }
  const auto is_near = [&](double cost_with_moves) {
    if (window.cost >= MOST) return false;
    if (missing_B <= 0) return window.cost <= cost_with_moves;
    return window.cost / static_cast<double>(window.evicted_B) <= NEARNESS * cost_with_moves / static_cast<double>(freed_B);
  };
  Bytes slid_B = 0;
  if (window.found() && window.evicted_B > 0) {
    spans_.name(window, victims);
    if (is_near(cost)) return;  // whatever is moved for scattered victims costs more
    slid_B = moved_B();
    if (slid_B < 0) return;  // there is no other candidate, or none known yet
    if (is_near(cost + moves(scene, window, slid_B, victims))) return;
    victims.clear();
  } else if (missing_B <= 0 && !scene.stuck) {
    slid_B = moved_B();
  }
  if (missing_B > 0 || slid_B < 0 || scene.stuck) victims.push_back(cheapest);
}

// Of the last search. O(candidates) then, however many values there are.
void AbstractTide::forget_minds(const Scene& scene) {
  if (minds_.size() < scene.ledger.value_slots()) {
    minds_.resize(scene.ledger.value_slots(), INFINITE);
    leaving_.resize(minds_.size());
    made_of_uncertain_.resize(minds_.size());
  }
  for (ValueId id : minded_) {
    minds_[static_cast<std::size_t>(id)] = INFINITE;
    leaving_[static_cast<std::size_t>(id)] = 0;
  }
  for (ValueId id : doubtful_) made_of_uncertain_[static_cast<std::size_t>(id)] = 0;
  minded_.clear();
  doubtful_.clear();
}

// Who is made of what is uncertain: few, so that the others need not look at what they are made of.
void AbstractTide::look_at_uncertain(const Scene& scene) {
  for (ValueId id : scene.ledger.candidates()) {
    if (!is_uncertain(scene.ledger[id])) continue;
    scene.neighbourhood.visit_children(id, [&](ValueId made) {
      made_of_uncertain_[static_cast<std::size_t>(made)] = 1;
      doubtful_.push_back(made);
    });
  }
}

// What slides cost: their time, weighed as the window's values weigh theirs.
double AbstractTide::moves(const Scene& scene, const Run& window, Bytes moved_B, const std::vector<ValueId>& victims) const {
  double back = 0;
  for (ValueId id : victims) back += back_ns(scene, id);
  const double scale = back > 0 ? window.cost / back : 0;
  return static_cast<double>(moved_B) * (density_.mean_ns() * MOVE) * scale;
}

Nanoseconds AbstractTide::moves_ns(Bytes moved_B) const {
  return static_cast<Nanoseconds>(static_cast<double>(moved_B) * (density_.mean_ns() * MOVE));
}

bool AbstractTide::sends(Scene& scene, ValueId id) {
  const Value& v = scene.ledger[id];
  return is_sendable(scene, v) && copies_ns(v) < static_cast<double>(again_ns(scene, id));
}

double AbstractTide::back_ns(const Scene& scene, ValueId id) const {
  const bool looks = made_of_uncertain_[static_cast<std::size_t>(id)] != 0;
  const double again = static_cast<double>(looks ? again_ns(scene, id) : with_ancestors_ns(scene, id));
  const Value& v = scene.ledger[id];
  return is_sendable(scene, v) ? std::min(again, copies_ns(v)) : again;
}

bool AbstractTide::is_idle(const Scene& scene, ValueId id) {
  return !scene.neighbourhood.has_handle(id) && !scene.neighbourhood.is_wanted(id);
}

double AbstractTide::unguided(const Scene& scene, ValueId id) const {
  const double stale_ns = static_cast<double>(scene.ledger.staleness_ns(scene.ledger[id]));
  return weighed(scene, id, std::sqrt(std::max(1.0, stale_ns)));
}

double AbstractTide::weighed(const Scene& scene, ValueId id, double distance) const {
  if (scene.ledger[id].size_B <= dust_B_) return MOST;
  return back_ns(scene, id) / distance;
}

bool AbstractTide::is_sendable(const Scene& scene, const Value& v) const {
  if (options_.link_Bps <= 0 || v.size_B == 0) return false;
  Bytes used_B = 0;
  for (std::size_t i = 0; i < scene.ledger.value_slots(); ++i) {
    const Value& other = scene.ledger[static_cast<ValueId>(i)];
    if (other.serial >= 0 && other.on_host) used_B += other.size_B;
  }
  return used_B + v.size_B <= options_.host_B;
}

double AbstractTide::copies_ns(const Value& v) const {
  return 2.0 * static_cast<double>(v.size_B) / options_.link_Bps * NS_PER_S;
}

namespace {

// The old are wanted last in a backward, but how old says little about how much later: so a square root. What no handle
// keeps alive, and nothing evicted that has one would need, is free.
class Tide final : public AbstractTide {
 public:
  using AbstractTide::AbstractTide;
  const char* name() const override { return "tide"; }

 protected:
  double mind(Scene& scene, ValueId id) override {
    return is_idle(scene, id) ? 0 : unguided(scene, id);
  }
};

}  // namespace

std::unique_ptr<Policy> make_tide(const PolicyOptions& options) { return std::make_unique<Tide>(options); }

}  // namespace lowtide::eager
