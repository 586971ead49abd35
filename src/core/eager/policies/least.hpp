// Least: the value of the least score; of equals the one that became evictable last.
#pragma once
#include "score.hpp"

namespace lowtide::eager {

class Least {
 public:
  void offer(ValueId id, double score, std::int64_t filed) {
    if (id_ != NO_VALUE && (score > score_ || (score == score_ && filed < filed_))) return;
    id_ = id;
    score_ = score;
    filed_ = filed;
  }
  ValueId id() const { return id_; }

 private:
  ValueId id_ = NO_VALUE;
  double score_ = INFINITE;
  std::int64_t filed_ = -1;
};

}  // namespace lowtide::eager
