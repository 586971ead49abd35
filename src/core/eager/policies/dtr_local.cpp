// DTR's score without neighbours: h_DTR^local of Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021.
#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

class DtrLocal final : public ScorePolicy<DtrLocal> {
 public:
  const char* name() const override { return "dtr-local"; }
  double score(const Scene& scene, ValueId, const Value& v) const {
    return per_byte_and_staleness(v.cost_ns, scene, v);
  }
};

}  // namespace

std::unique_ptr<Policy> make_dtr_local(const PolicyOptions&) { return std::make_unique<DtrLocal>(); }

}  // namespace lowtide::eager
