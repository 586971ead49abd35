// Least recently used first.
#include "families.hpp"
#include "score.hpp"

namespace lowtide::eager {

namespace {

class Lru final : public ScorePolicy<Lru> {
 public:
  const char* name() const override { return "lru"; }
  double score(const Scene&, ValueId, const Value& v) const {
    return static_cast<double>(v.last_use);
  }
};

}  // namespace

std::unique_ptr<Policy> make_lru(const PolicyOptions&) { return std::make_unique<Lru>(); }

}  // namespace lowtide::eager
