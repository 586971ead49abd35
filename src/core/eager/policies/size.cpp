// Largest first.
#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

class Size final : public ScorePolicy<Size> {
 public:
  const char* name() const override { return "size"; }
  double score(const Scene&, ValueId, const Value& v) const {
    return v.size_B > 0 ? 1.0 / static_cast<double>(v.size_B) : INFINITE;
  }
};

}  // namespace

std::unique_ptr<Policy> make_size(const PolicyOptions&) { return std::make_unique<Size>(); }

}  // namespace lowtide::eager
