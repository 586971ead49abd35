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

// What recomputing it takes, with those of evicted values that its calls need. What is in use now may be so for the
// last time, as a gradient is: it is not counted on.
Nanoseconds again_ns(const Scene& scene, ValueId id) {
  const auto with_ancestors_ns = [&](ValueId v) { return scene.ledger[v].cost_ns + scene.neighbourhood.ancestors_ns(v); };
  Nanoseconds sum_ns = with_ancestors_ns(id);
  scene.neighbourhood.visit_parents(id, [&](ValueId parent) {
    const Value& p = scene.ledger[parent];
    if (p.pins > 0 && p.is_resident() && !p.is_leaf()) sum_ns += with_ancestors_ns(parent);
  });
  return sum_ns;
}

}  // namespace

void AbstractTide::choose(Scene& scene, Bytes need_B, std::vector<ValueId>& victims) {
  scene.neighbourhood.begin_search();
  minds_.assign(scene.ledger.value_slots(), INFINITE);
  ranked_.clear();
  for (ValueId id : scene.ledger.candidates()) {
    const Value& v = scene.ledger[id];
    if (v.pins != 0) continue;
    ++scene.weighed;
    const double cost = minds_[static_cast<std::size_t>(id)] = mind(scene, id);
    if (v.size_B > 0) ranked_.push_back({cost / static_cast<double>(v.size_B), v.filed, id});
  }
  if (ranked_.empty()) return;
  const auto later = [](const Ranked& a, const Ranked& b) {  // whether a goes after b
    return a.per_byte > b.per_byte || (a.per_byte == b.per_byte && a.filed < b.filed);
  };
  std::make_heap(ranked_.begin(), ranked_.end(), later);
  const ValueId cheapest = ranked_.front().id;
  const Bytes reserved_B = scene.capacity.reserved_for(need_B);
  const Bytes missing_B = reserved_B - (scene.capacity.capacity_B() - scene.capacity.in_use_B());
  double cost = 0;
  Bytes freed_B = 0;
  leaving_.assign(scene.ledger.value_slots(), 0);
  for (auto end = ranked_.end(); end != ranked_.begin() && freed_B < missing_B; --end) {
    std::pop_heap(ranked_.begin(), end, later);
    const auto id = static_cast<std::size_t>((end - 1)->id);
    leaving_[id] = 1;
    cost += minds_[id];
    freed_B += scene.ledger[(end - 1)->id].size_B;
  }
  spans_.read(scene.capacity, [&](ValueId id) { return minds_[static_cast<std::size_t>(id)]; });
  const auto leaves = [&](ValueId id) { return leaving_[static_cast<std::size_t>(id)] != 0; };
  const auto movable = [&](ValueId id) { return scene.is_movable(id); };
  const Bytes moved_B = freed_B >= missing_B ? spans_.moved_for(reserved_B, leaves, movable) : -1;
  const Run window = spans_.cheapest(reserved_B);
  if (!window.found() && scene.capacity.has_addresses() && need_B > Density::SMALL_B) {  // small blocks have places of their own
    const auto may_leave = [&](ValueId id) { return minds_[static_cast<std::size_t>(id)] != INFINITE; };
    if (spans_.moved_for(reserved_B, may_leave, movable) < 0) return;
  }
  if (window.found() && window.evicted_B > 0) {
    spans_.name(window, victims);
    if (moved_B < 0) return;  // there is no other candidate, or none known yet
    cost += moves(scene, window, moved_B, victims);
    const auto is_near = [&] {
      if (missing_B <= 0) return window.cost <= cost;
      return window.cost / static_cast<double>(window.evicted_B) <= NEARNESS * cost / static_cast<double>(freed_B);
    };
    if (window.cost < MOST && is_near()) return;
    victims.clear();
  }
  if (missing_B > 0 || moved_B < 0 || scene.stuck) victims.push_back(cheapest);
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
  const double again = static_cast<double>(again_ns(scene, id));
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
  if (scene.ledger[id].size_B <= std::min(Density::SMALL_B, scene.capacity.capacity_B() / DUST)) return MOST;
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
