// Coop: windows of neighbouring bytes, operators of like cost per byte side by side, updates in place.
//
// Zhang et al., Coop: Memory is not a Commodity, NeurIPS 2023. What is evicted for a request is a run of adjoining
// blocks and holes of the least summed score, so that all freed bytes are of use. Each of its techniques can be left
// out (updates in place are the tape's business). Its list of cheap operators is replaced by what the list stands for:
// the cost per byte of a call, against the mean so far.
#include "density.hpp"
#include "families.hpp"
#include "least.hpp"
#include "spans_at_stake.hpp"
#include "upstream.hpp"

namespace lowtide::eager {

namespace {

constexpr Bytes SMALL_B = Density::SMALL_B;  // blocks up to this size are not evicted
constexpr double MOST = 1e300;                // of a score: what was used this instant

class Coop final : public Policy {
 public:
  Coop(const char* name, bool windows, bool partitions) : name_(name), windows_(windows), partitions_(partitions) {}
  const char* name() const override { return name_; }
  Neighbourhood::Kept neighbourhood() const override { return {false, true}; }

  void ended(Scene& scene, CallId id) override { density_.learn(scene.ledger.call(id)); }

  bool partitions() const override { return partitions_; }
  // Calls of more than mean cost per byte grow from the low end, others from the high end.
  End end_for(Nanoseconds cost_ns, Bytes size_B) const override {
    return !partitions_ || density_.is_dense(cost_ns, size_B) ? End::low : End::high;
  }

  void choose(Scene& scene, Bytes need_B, std::vector<ValueId>& victims) override {
    if (windows_ && scene.capacity.has_addresses())
      choose_window(scene, need_B, victims);
    else
      choose_single(scene, victims);
  }

 private:
  void choose_window(Scene& scene, Bytes need_B, std::vector<ValueId>& victims) {
    spans_.read(scene.capacity, [&](ValueId id) {
      const Value& v = scene.ledger[id];
      if (!v.is_evictable() || v.size_B <= SMALL_B) return INFINITE;
      ++scene.weighed;
      return score(scene, id, v);
    });
    spans_.name(spans_.cheapest(scene.capacity.reserved_for(need_B)), victims);
  }

  void choose_single(Scene& scene, std::vector<ValueId>& victims) const {
    Least least;
    for (ValueId id : scene.ledger.candidates()) {
      const Value& v = scene.ledger[id];
      if (v.pins != 0 || v.size_B <= SMALL_B) continue;
      ++scene.weighed;
      least.offer(id, score(scene, id, v) / static_cast<double>(v.size_B), v.filed);
    }
    if (least.id() != NO_VALUE) victims.push_back(least.id());
  }

  // Cost by staleness; the window fixes the bytes.
  static double score(const Scene& scene, ValueId id, const Value& v) {
    const Nanoseconds stale_ns = scene.ledger.staleness_ns(v);
    if (stale_ns <= 0) return MOST;
    return static_cast<double>(v.cost_ns + upstream_ns(scene.ledger, scene.neighbourhood, id)) / static_cast<double>(stale_ns);
  }

  const char* name_;
  bool windows_, partitions_;
  Density density_;
  SpansAtStake spans_;
};

}  // namespace

std::unique_ptr<Policy> make_coop(const PolicyOptions&) { return std::make_unique<Coop>("coop", true, true); }
std::unique_ptr<Policy> make_coop_no_windows(const PolicyOptions&) {
  return std::make_unique<Coop>("coop-no-windows", false, true);
}
std::unique_ptr<Policy> make_coop_no_partition(const PolicyOptions&) {
  return std::make_unique<Coop>("coop-no-partition", true, false);
}
std::unique_ptr<Policy> make_coop_no_in_place(const PolicyOptions&) {
  return std::make_unique<Coop>("coop-no-in-place", true, true);
}

}  // namespace lowtide::eager
