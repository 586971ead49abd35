// Score: policies that evict the value of the least score, one at a time.
//
// Of equal scores the value that became evictable last goes; among scores of 0 the one that became so first, since DTR's
// simulator ends its search there. O(candidates) per victim.
#pragma once
#include <limits>

#include "../policy.hpp"

namespace lowtide::eager {

constexpr double INFINITE = std::numeric_limits<double>::infinity();

template <class Derived>
class ScorePolicy : public Policy {
 public:
  bool sheds() const override { return false; }

  void choose(Scene& scene, Bytes, std::vector<ValueId>& victims) override {
    ValueId best = NO_VALUE;
    double least = INFINITE;
    std::int64_t filed = -1;
    for (ValueId id : scene.ledger.candidates()) {
      const Value& v = scene.ledger[id];
      if (v.pins != 0) continue;
      ++scene.weighed;
      const double score = static_cast<const Derived&>(*this).score(scene, id, v);
      const bool tied = score == least && (score == 0 ? v.filed < filed : v.filed > filed);
      if (score < least || tied || best == NO_VALUE) {
        best = id;
        least = score;
        filed = v.filed;
      }
    }
    if (best != NO_VALUE) victims.push_back(best);
  }
};

// A cost by how many bytes it would free and how long they were not used; infinite where that is nothing.
inline double per_byte_and_staleness(Nanoseconds cost_ns, const Scene& scene, const Value& v) {
  const double denominator =
      static_cast<double>(v.size_B) * static_cast<double>(scene.ledger.staleness_ns(v));
  return denominator > 0 ? static_cast<double>(cost_ns) / denominator : INFINITE;
}

}  // namespace lowtide::eager
