// DTR's score with neighbourhoods approximated by classes, as its prototype runs it: h_DTR^eq of Kirisame et al.,
// Dynamic Tensor Rematerialization, ICLR 2021.
#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

class DtrClasses final : public ScorePolicy<DtrClasses> {
 public:
  const char* name() const override { return "dtr-classes"; }
  Neighbourhood::Kept neighbourhood() const override { return {false, true}; }
  double score(const Scene& scene, ValueId id, const Value& v) const {
    return per_byte_and_staleness(v.cost_ns + scene.neighbourhood.neighbours_ns(id), scene, v);
  }
};

}  // namespace

std::unique_ptr<Policy> make_dtr_classes(const PolicyOptions&) { return std::make_unique<DtrClasses>(); }

}  // namespace lowtide::eager
