#include "moves.hpp"

#include <algorithm>

namespace lowtide {

namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

bool has_change(const std::vector<Change>& changes, Index gap) {
  return std::any_of(changes.begin(), changes.end(), [&](const Change& c) { return c.gap == gap; });
}

// Drops a value behind the stage that reads it at the end of `gap`, so that the stage's run takes it over.
bool drop_for_takeover(const Retention& state, Index gap, Index stage, std::vector<Change>& changes) {
  const Program& program = state.program();
  const Index value = program.gap_value[at(gap)], next = gap + 1;
  const Slice takeovers = program.takeovers[stage];
  if (std::find(takeovers.begin(), takeovers.end(), value) == takeovers.end()) return false;
  if (gap - program.first_gap(value) == program.uses[value].size() || !program.is_free(next)) return false;
  if (state.retention(next) != KEEP || has_change(changes, next)) return false;
  changes.push_back({next, blocking(state, next, stage + 1)});
  return true;
}

}  // namespace

Index blocking(const Retention& state, Index gap, Index retention) {
  if (!state.program().fetches) return retention;
  const bool fetched = is_by_fetch(state.retention(gap)) || !state.program().can_recompute(gap);
  return retention > KEEP && fetched ? by_fetch(retention) : retention;
}

bool drop_across(const Retention& state, Index value, Index stage, std::vector<Change>& changes) {
  const Program& program = state.program();
  if (program.producer[at(value)] >= stage) return false;
  const Index gap = program.gap_at(value, stage);
  const Index start = program.gap_start(gap);
  if (program.gap_end(gap) == stage && drop_for_takeover(state, gap, stage, changes)) return true;
  if (program.gap_end(gap) <= stage && gap - program.first_gap(value) < program.uses[value].size()) return false;
  if (start >= stage || !program.is_free(gap) || has_change(changes, gap)) return false;
  const Span* span = state.span_at(value, stage);
  const bool stays = span && span->start == stage && span->end > stage;  // rematerialised here, and kept
  if (!stays && !state.available(value, stage)) return false;
  // Rematerialised at or before this stage and kept since: keep it only from later on.
  const bool brought = span && span->start > start;
  changes.push_back({gap, blocking(state, gap, brought ? stage + 1 : start + 1)});
  return true;
}

void drop_parents(const Retention& state, Index value, Index stage, Index depth, std::vector<Change>& changes) {
  if (depth == 0 || changes.size() >= 64) return;
  const Program& program = state.program();
  for (Index parent : program.reads[program.producer[at(value)]]) {
    if (drop_across(state, parent, stage, changes)) drop_parents(state, parent, stage, depth - 1, changes);
  }
}

void drop_siblings(const Retention& state, Index value, Index stage, std::vector<Change>& changes) {
  const Program& program = state.program();
  for (Index sibling : program.outputs[program.producer[at(value)]])
    if (sibling != value) drop_across(state, sibling, stage, changes);
}

void recompute_parents(const Retention& state, Index value, Index stage, Index depth, std::vector<Change>& changes) {
  if (depth == 0 || changes.size() >= 64) return;
  const Program& program = state.program();
  for (Index parent : program.reads[program.producer[at(value)]]) {
    if (program.producer[at(parent)] >= stage) continue;
    const Index gap = program.gap_at(parent, stage);
    if (!is_by_fetch(state.retention(gap)) || !program.can_recompute(gap) || has_change(changes, gap)) continue;
    changes.push_back({gap, by_fetch(state.retention(gap))});
    recompute_parents(state, parent, stage, depth - 1, changes);
  }
}

void keep_across(const Retention& state, Index value, Index stage, Index depth, std::vector<Change>& changes) {
  const Program& program = state.program();
  if (program.producer[at(value)] >= stage || changes.size() >= 64) return;
  const Index gap = program.gap_at(value, stage);
  if (state.retention(gap) == KEEP || has_change(changes, gap)) return;
  changes.push_back({gap, KEEP});
  if (depth == 0) return;
  for (Index parent : program.reads[program.producer[at(value)]])
    keep_across(state, parent, stage, depth - 1, changes);
}

Picos closure_time(const Retention& state, Index value, Index stage, Index limit) {
  const Program& program = state.program();
  std::vector<Index> found{program.producer[at(value)]};
  Picos time = 0;
  for (std::size_t i = 0; i < found.size() && i < at(limit); ++i) {
    time += program.recompute_time[at(found[i])];
    for (Index parent : program.reads[found[i]]) {
      const Index recipe = program.producer[at(parent)];
      if (state.available(parent, stage)) continue;
      if (program.fetches && is_by_fetch(state.retention(program.gap_at(parent, stage)))) {
        time += program.price(0, program.fetch_B[at(parent)]);
        continue;
      }
      if (std::find(found.begin(), found.end(), recipe) == found.end()) found.push_back(recipe);
    }
  }
  return time;
}

Picos fetch_time(const Retention& state, Index value) {
  const Program& program = state.program();
  const bool sent = !state.recompute_at(program.stage_count() + value).empty();
  return program.price(sent ? 0 : program.send_B[at(value)], program.fetch_B[at(value)]);
}

}  // namespace lowtide
