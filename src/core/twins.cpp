#include "twins.hpp"

#include <algorithm>

namespace lowtide {

Twins::Twins(const Program& program, std::vector<Index> class_of) : class_of_(std::move(class_of)) {
  place_.assign(class_of_.size(), -1);
  Index count = 0;
  for (Index c : class_of_) count = std::max(count, c + 1);
  std::vector<std::vector<Index>> members(at(count));
  for (Index g = 0; g < static_cast<Index>(class_of_.size()); ++g)
    if (class_of_[at(g)] >= 0) members[at(class_of_[at(g)])].push_back(g);
  for (std::vector<Index>& row : members) {
    std::stable_sort(row.begin(), row.end(),
                     [&](Index a, Index b) { return program.gap_start(a) < program.gap_start(b); });
    for (std::size_t i = 0; i < row.size(); ++i) place_[at(row[i])] = static_cast<Index>(i);
    members_.push_row(row);
  }
}

Index Twins::shifted(const Program& program, Index gap, Index shift) const {
  const Index c = class_of(gap);
  if (c < 0) return -1;
  const Slice row = members_[c];
  const Index start = program.gap_start(gap) + shift;
  const Index* found = std::lower_bound(row.begin(), row.end(), start,
                                        [&](Index g, Index stage) { return program.gap_start(g) < stage; });
  return found != row.end() && program.gap_start(*found) == start ? *found : -1;
}

bool Twins::is_valid() const {
  if (!members_.is_valid() || place_.size() != class_of_.size()) return false;
  for (Index c = 0; c < members_.size(); ++c)
    for (Index i = 0; i < members_[c].size(); ++i)
      if (class_of(members_[c][i]) != c || place(members_[c][i]) != i) return false;
  return true;
}

Index translated(const Program& program, Index gap, Index retention, Index twin) {
  const Index start = program.gap_start(gap), end = program.gap_end(gap);
  if (is_by_fetch(retention)) return by_fetch(translated(program, gap, by_fetch(retention), twin));
  if (retention == KEEP || retention == NEVER) return retention;
  const Index first = program.gap_start(twin), last = program.gap_end(twin);
  const Index moved = retention - start <= end - retention ? first + (retention - start) : last - (end - retention);
  return std::max(first + 1, std::min(moved, last));
}

}  // namespace lowtide
