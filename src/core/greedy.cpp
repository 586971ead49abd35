#include "greedy.hpp"

#include <algorithm>

#include "moves.hpp"

namespace lowtide {

bool Greedy::run(Index steps) {
  for (Index i = 0; i < steps; ++i)
    if (state_->fits() || !step()) return true;
  return state_->fits();
}

bool Greedy::step() {
  const Program& program = state_->program();
  if (improve_at(state_->peak_stage())) return true;
  // The peak itself may be stuck while other stages above the budget are not: try the highest of them.
  std::vector<Index> over;
  for (Index t = 0; t < program.stage_count(); ++t)
    if (state_->live(t) > state_->budget()) over.push_back(t);
  std::stable_sort(over.begin(), over.end(), [&](Index a, Index b) { return state_->live(a) > state_->live(b); });
  const std::size_t stride = std::max<std::size_t>(1, over.size() / 8);
  for (std::size_t i = 0; i < over.size(); i += stride)
    if (improve_at(over[i])) return true;
  return false;
}

void Greedy::rank(Index stage) {
  const Program& program = state_->program();
  ranked_.clear();
  const double fair_gap = std::max(1.0, 0.05 * program.stage_count());
  for (Index v = 0; v < program.value_count(); ++v) {
    const Span* span = state_->span_at(v, stage);
    if (!span || program.producer[static_cast<std::size_t>(v)] >= stage || span->end <= stage) continue;
    changes_.clear();
    if (!drop_across(*state_, v, stage, changes_)) continue;
    const Index gap = changes_[0].gap;
    const Index next = std::min(span->end, program.gap_end(gap));
    const double length = static_cast<double>(next - program.gap_start(gap));
    Picos back = program.can_recompute(gap) ? closure_time(*state_, v, next, 32) : fetch_time(*state_, v);
    if (program.can_fetch(v)) back = std::min(back, fetch_time(*state_, v));
    const double time = static_cast<double>(back) + 1.0;
    const double size = static_cast<double>(program.size[static_cast<std::size_t>(v)]);
    ranked_.push_back({size * std::min(1.0, length / fair_gap) / time, v});
  }
  const std::size_t keep = std::min(ranked_.size(), static_cast<std::size_t>(candidates_));
  std::partial_sort(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(keep), ranked_.end(),
                    [](const Ranked& a, const Ranked& b) {
                      return a.score > b.score || (a.score == b.score && a.value < b.value);
                    });
  ranked_.resize(keep);
}

void Greedy::consider(Index stage) {
  if (changes_.empty()) return;
  ++tried_;
  const Bytes excess = state_->excess(), live = state_->live(stage);
  const Picos time = state_->time();
  if (!state_->apply(changes_)) return;
  const double gain = static_cast<double>(excess - state_->excess());
  const double cost = std::max(1.0, static_cast<double>(state_->time() - time));
  const bool helps = gain > 0 && state_->live(stage) <= live;
  state_->undo();
  if (helps && gain / cost > best_rate_) {
    best_rate_ = gain / cost;
    best_ = changes_;
  }
}

// The value alone, dropped to be prefetched, if it could be recomputed too.
void Greedy::consider_fetch(Index value, Index stage) {
  const Program& program = state_->program();
  changes_.clear();
  if (!program.can_fetch(value) || !drop_across(*state_, value, stage, changes_)) return;
  if (is_by_fetch(changes_[0].retention)) return;
  changes_[0].retention = by_fetch(changes_[0].retention);
  consider(stage);
}

bool Greedy::improve_at(Index stage) {
  rank(stage);
  best_rate_ = 0;
  best_.clear();
  const std::vector<Ranked> ranked = ranked_;
  for (const Ranked& r : ranked) {
    for (Index depth : {0, 1, 4}) {
      changes_.clear();
      drop_across(*state_, r.value, stage, changes_);
      if (depth > 0) drop_siblings(*state_, r.value, stage, changes_);
      const std::size_t before = changes_.size();
      drop_parents(*state_, r.value, stage, depth, changes_);
      if (depth == 0 || changes_.size() > before || before > 1) consider(stage);
    }
    consider_fetch(r.value, stage);
  }
  if (best_.empty() || !state_->apply(best_)) return false;
  state_->commit();
  return true;
}

}  // namespace lowtide
