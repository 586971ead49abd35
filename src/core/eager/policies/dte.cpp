// MegEngine's DTR, "DTE": DTR's score with adjoining free bytes added to the size. As read from MegEngine's interpreter
// (eval_func, all exponents 1): the cost of evicted neighbours counts and the value's own does not, whatever was
// recomputed often counts a little more, and only values above a size are candidates. When nothing can be evicted any
// more, blocks are slid together.
#include <cmath>
#include <vector>

#include "families.hpp"
#include "least.hpp"
#include "upstream.hpp"

namespace lowtide::eager {

namespace {

constexpr Bytes MiB = 1 << 20, SHARE_OF_CAPACITY = 1024;  // a candidate's least size, or the share of the capacity that is less
constexpr double GROWTH = 1.0001;                     // per recomputation
constexpr double NS_PER_MS = 1e6, EPSILON_MS = 1e-3;

class Dte final : public Policy {
 public:
  const char* name() const override { return "dte"; }
  Neighbourhood::Kept neighbourhood() const override { return {false, true}; }
  bool slides_at_last() const override { return true; }
  void restored(Scene& scene, ValueId id) override {
    if (known_.size() < scene.ledger.value_slots()) known_.resize(scene.ledger.value_slots());
    Known& known = known_[static_cast<std::size_t>(id)];
    const std::int64_t serial = scene.ledger[id].serial;
    known = {serial, known.serial == serial ? known.restored + 1 : 1, 0};
  }

  // O(candidates and holes).
  void choose(Scene& scene, Bytes, std::vector<ValueId>& victims) override {
    const Bytes least_B = std::min(MiB, scene.capacity.capacity_B() / SHARE_OF_CAPACITY);
    measure(scene);
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
    const double cost_ms = static_cast<double>(upstream_ns(scene.ledger, scene.neighbourhood, id)) / NS_PER_MS + EPSILON_MS;
    const double stale_ms = static_cast<double>(scene.ledger.staleness_ns(v)) / NS_PER_MS + EPSILON_MS;
    const Known& known = known_[static_cast<std::size_t>(id)];
    const double size_MiB = static_cast<double>(v.size_B + known.adjacent_B) / static_cast<double>(MiB);
    const double again = known.serial == v.serial ? static_cast<double>(known.restored) : 0;
    return cost_ms * std::pow(GROWTH, again) / (size_MiB * stale_ms);
  }

  // How many bytes are free on either side of each value.
  void measure(const Scene& scene) {
    if (known_.size() < scene.ledger.value_slots()) known_.resize(scene.ledger.value_slots());
    for (ValueId id : scene.ledger.candidates()) known_[static_cast<std::size_t>(id)].adjacent_B = 0;
    scene.capacity.pieces(pieces_);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].hole || pieces_[i].value == NO_VALUE) continue;
      const Bytes below_B = i > 0 && pieces_[i - 1].hole ? pieces_[i - 1].size_B() : 0;
      const Bytes above_B = i + 1 < pieces_.size() && pieces_[i + 1].hole ? pieces_[i + 1].size_B() : 0;
      known_[static_cast<std::size_t>(pieces_[i].value)].adjacent_B = below_B + above_B;
    }
  }

  struct Known {
    std::int64_t serial = -1, restored = 0;  // how often that value was rematerialised
    Bytes adjacent_B = 0;
  };
  std::vector<Known> known_;  // by ValueId
  std::vector<Piece> pieces_;
};

}  // namespace

std::unique_ptr<Policy> make_dte(const PolicyOptions&) { return std::make_unique<Dte>(); }

}  // namespace lowtide::eager
