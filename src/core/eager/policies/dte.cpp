// MegEngine's DTR, "DTE": DTR's score with adjoining free bytes added to the size. As read from MegEngine's interpreter
// (eval_func, all exponents 1): the cost of evicted neighbours counts and the value's own does not, whatever was
// recomputed often counts a little more, and only values above a size are candidates. When nothing can be evicted any
// more, blocks are moved together.
#include <cmath>
#include <unordered_map>

#include "families.hpp"
#include "least.hpp"
#include "upstream.hpp"

namespace lowtide::eager {

namespace {

constexpr Bytes MiB = 1 << 20, SHARE_OF_ROOM = 1024;  // a candidate's least size, or the share of the room that is less
constexpr double GROWTH = 1.0001;                     // per recomputation
constexpr double NS_PER_MS = 1e6, EPSILON_MS = 1e-3;

class Dte final : public Policy {
 public:
  const char* name() const override { return "dte"; }
  Kinship::Kept kinship() const override { return {false, true}; }
  bool slides_at_last() const override { return true; }
  void restored(Scene& scene, ValueId id) override { ++restored_[scene.ledger[id].serial]; }

  // O(candidates x holes).
  void choose(Scene& scene, Bytes, std::vector<ValueId>& victims) override {
    const Bytes least_B = std::min(MiB, scene.room.capacity_B() / SHARE_OF_ROOM);
    Least least;
    for (ValueId id : scene.ledger.candidates()) {
      const Value& v = scene.ledger[id];
      if (v.pins != 0 || v.size_B <= least_B) continue;
      ++scene.weighed;
      least.offer(id, score(scene, id, v), v.filed);
    }
    if (least.id() != NO_VALUE) victims.push_back(least.id());
  }

 private:
  double score(const Scene& scene, ValueId id, const Value& v) const {
    const double cost_ms = static_cast<double>(upstream_ns(scene.ledger, scene.kinship, id)) / NS_PER_MS + EPSILON_MS;
    const double stale_ms = static_cast<double>(scene.ledger.staleness_ns(v)) / NS_PER_MS + EPSILON_MS;
    const Bytes beside_B = scene.room.beside(v.offset_B).sum_B();
    const double size_MiB = static_cast<double>(v.size_B + beside_B) / static_cast<double>(MiB);
    const auto times = restored_.find(v.serial);
    const double again = times == restored_.end() ? 0 : static_cast<double>(times->second);
    return cost_ms * std::pow(GROWTH, again) / (size_MiB * stale_ms);
  }

  std::unordered_map<std::int64_t, std::int64_t> restored_;  // by serial
};

}  // namespace

std::unique_ptr<Policy> make_dte(const PolicyOptions&) { return std::make_unique<Dte>(); }

}  // namespace lowtide::eager
