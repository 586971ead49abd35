// Twins: gaps that play the same part in layers that repeat, so that a change found good in one layer can be tried in
// others.
//
// Gaps of one CLASS are twins of each other, sorted by the stage where they begin. To MIRROR changes is to repeat them
// `shift` stages later or earlier: each at the twin that begins there, its retention translated (KEEP, "at once" and
// NEVER as they are; other stages keep their distance from the nearer end of the gap). Changes without a twin there are
// left out.
// Invariant: place[members[c][i]] == i and class_of[members[c][i]] == c.
#pragma once
#include <vector>

#include "retention.hpp"

namespace lowtide {

class Twins {
 public:
  Twins() = default;
  // class_of: per gap its class, -1 for none; empty for a program without twins.
  Twins(const Program& program, std::vector<Index> class_of);

  bool empty() const { return members_.item.empty(); }
  Index class_of(Index gap) const { return class_of_[at(gap)]; }
  Index place(Index gap) const { return place_[at(gap)]; }
  Slice members(Index twin_class) const { return members_[twin_class]; }
  // The twin of `gap` that begins `shift` stages later; -1 if there is none.
  Index shifted(const Program& program, Index gap, Index shift) const;
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  std::vector<Index> class_of_, place_;
  Rows members_;
};

// What a retention of `gap` is in its twin.
Index translated(const Program& program, Index gap, Index retention, Index twin);

}  // namespace lowtide
