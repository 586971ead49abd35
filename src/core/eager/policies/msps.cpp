// Memory saved per second of recomputation: own cost and that of evicted ancestors, by size (Peng et al., Capuchin,
// ASPLOS 2020, as compared by Kirisame et al., ICLR 2021).
#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

class Msps final : public ScorePolicy<Msps> {
 public:
  const char* name() const override { return "msps"; }
  Neighbourhood::Kept neighbourhood() const override { return {true, false}; }
  double score(const Scene& scene, ValueId id, const Value& v) const {
    return v.size_B > 0 ? static_cast<double>(v.cost_ns + scene.neighbourhood.ancestors_ns(id)) / static_cast<double>(v.size_B) : INFINITE;
  }
};

}  // namespace

std::unique_ptr<Policy> make_msps(const PolicyOptions&) { return std::make_unique<Msps>(); }

}  // namespace lowtide::eager
