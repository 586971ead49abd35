// DTR's score with exact neighbourhoods: h_DTR of Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021.
#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

class Dtr final : public ScorePolicy<Dtr> {
 public:
  const char* name() const override { return "dtr"; }
  Neighbourhood::Kept neighbourhood() const override { return {true, false}; }
  double score(const Scene& scene, ValueId id, const Value& v) const {
    return per_byte_and_staleness(v.cost_ns + scene.neighbourhood.ancestors_ns(id) + scene.neighbourhood.descendants_ns(id), scene, v);
  }
};

}  // namespace

std::unique_ptr<Policy> make_dtr(const PolicyOptions&) { return std::make_unique<Dtr>(); }

}  // namespace lowtide::eager
