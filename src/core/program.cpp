#include "program.hpp"

#include <algorithm>

namespace lowtide {

namespace {
std::size_t at(Index i) { return static_cast<std::size_t>(i); }
}  // namespace

Index Program::gap_at(Index value, Index stage) const {
  const Slice use = uses[value];
  return first_gap(value) + static_cast<Index>(std::lower_bound(use.begin(), use.end(), stage) - use.begin());
}

bool Program::can_recompute(Index gap) const {
  return recompute_through[at(producer[at(gap_value[at(gap)])])] > gap_start(gap);
}

bool Program::is_free(Index gap) const {
  const Index value = gap_value[at(gap)];
  const Index start = gap_start(gap);
  return gap_end(gap) > start && start < pinned_from[at(value)] && (can_recompute(gap) || can_fetch(value));
}

bool Program::is_lost(Index gap) const { return gap_start(gap) == lost_from[at(gap_value[at(gap)])]; }

Index Program::lost_retention(Index gap) const {
  const Index at_once = gap_start(gap) + 1;
  return !can_recompute(gap) && can_fetch(gap_value[at(gap)]) ? by_fetch(at_once) : at_once;
}

bool Program::may_take(Index stage, Index value) const {
  const Index gap = gap_at(value, stage) + 1, maker = producer[at(value)];
  const bool is_last = gap - first_gap(value) == uses[value].size();
  const bool in_time =
      maker >= opened[at(stage)] || recompute_through[at(maker)] >= opened[at(stage)] || can_fetch(value);
  return in_time && (is_last || is_free(gap));
}

Bytes Program::least_peak(Index stage) const {
  for (Index v : takeovers[stage])
    if (may_take(stage, v)) return std::min(takeover_peak[at(stage)], trace_peak[at(stage)]);
  return trace_peak[at(stage)];
}

void Program::index() {
  producer.assign(size.size(), -1);
  std::vector<std::vector<Index>> users(size.size());
  for (Index t = 0; t < stage_count(); ++t) {
    for (Index v : outputs[t]) producer[at(v)] = t;
    for (Index v : reads[t]) users[at(v)].push_back(t);
  }
  uses = Rows{};
  gap_value.clear();
  gap_from.clear();
  gap_through.clear();
  for (Index v = 0; v < value_count(); ++v) {
    uses.push_row(users[at(v)]);
    gap_value.insert(gap_value.end(), users[at(v)].size() + 1, v);
    gap_from.push_back(producer[at(v)]);
    gap_from.insert(gap_from.end(), users[at(v)].begin(), users[at(v)].end());
    gap_through.insert(gap_through.end(), users[at(v)].begin(), users[at(v)].end());
    gap_through.push_back(stage_count() - 1);
  }
  fetches = std::any_of(fetch_B.begin(), fetch_B.end(), [](Bytes b) { return b >= 0; });
}

bool Program::is_valid() const {
  const std::size_t n = at(stage_count());
  if (!outputs.is_valid() || !reads.is_valid() || reads.size() != stage_count() || fixed < 0) return false;
  if (run_time.size() != n || recompute_time.size() != n || trace_peak.size() != n || recompute_peak.size() != n ||
      recompute_through.size() != n || part.size() != n || pinned_from.size() != size.size() ||
      lost_from.size() != size.size())
    return false;
  if (fetch_B.size() != size.size() || send_B.size() != size.size() || !(send_price >= 0) || !(fetch_price >= 0))
    return false;
  for (Bytes sent : send_B)
    if (sent < 0) return false;
  if (!takeovers.is_valid() || takeovers.size() != stage_count() || takeover_peak.size() != n || opened.size() != n)
    return false;
  std::vector<Index> made(size.size(), -1);
  for (Index t = 0; t < stage_count(); ++t) {
    if (run_time[at(t)] < 0 || recompute_time[at(t)] < 0 || trace_peak[at(t)] < 0 || recompute_peak[at(t)] < 0) return false;
    if (takeover_peak[at(t)] < 0 || takeover_peak[at(t)] > std::min(trace_peak[at(t)], recompute_peak[at(t)])) return false;
    if (opened[at(t)] < 0 || opened[at(t)] > t) return false;
    const Slice read = reads[t];
    for (Index v : takeovers[t])
      if (std::find(read.begin(), read.end(), v) == read.end()) return false;
    for (Index i = 0; i < read.size(); ++i) {
      if (read[i] < 0 || read[i] >= value_count() || made[at(read[i])] < 0) return false;
      if (std::find(read.begin(), read.begin() + i, read[i]) != read.begin() + i) return false;
    }
    for (Index v : outputs[t]) {
      if (v < 0 || v >= value_count() || made[at(v)] >= 0 || size[at(v)] < 0) return false;
      made[at(v)] = t;
    }
  }
  return std::find(made.begin(), made.end(), -1) == made.end();
}

}  // namespace lowtide
