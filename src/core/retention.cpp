#include "retention.hpp"

#include <algorithm>

namespace lowtide {

namespace {

// Calls gone(x) for what only `before` has and come(x) for what only `after` has.
template <class Gone, class Come>
void difference(std::vector<Index> before, std::vector<Index> after, Gone gone, Come come) {
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  auto b = before.begin(), a = after.begin();
  while (b != before.end() || a != after.end()) {
    if (a == after.end() || (b != before.end() && *b < *a)) {
      gone(*b++);
    } else if (b == before.end() || *a < *b) {
      come(*a++);
    } else {
      ++a, ++b;
    }
  }
}

}  // namespace

void Retention::Journal::clear() {
  taus.clear();
  recomputations.clear();
  spans.clear();
  local.clear();
}

Retention::Retention(const Program& program, Bytes budget, Index closure_cap)
    : program_(&program), budget_(budget), closure_cap_(at(closure_cap)), work_cap_(16 * at(closure_cap)) {
  const std::size_t n = at(program.stage_count()), m = at(program.value_count());
  retention_.assign(at(program.gap_count()), KEEP);
  rec_.resize(n);
  recompute_at_.resize(program.fetches ? n + m : n);
  spans_.resize(m);
  live_.reset(program.stage_count(), program.fixed, budget);
  local_.assign(n, 0);
  is_dirty_.assign(n, 0);
  stage_touched_.assign(n, 0);
  value_touched_.assign(m, 0);
  seen_.assign(recompute_at_.size(), 0);
  last_read_.assign(m, -1);
  for (Picos t : program.run_time) cost_.compute += t;
  for (Index v = 0; v < program.value_count(); ++v) {
    build_spans(v, fresh_spans_);
    set_spans(v, fresh_spans_);
  }
  for (Index t = 0; t < program.stage_count(); ++t) set_local(t, simulate(t));
  for (Index t : touched_stages_) stage_touched_[at(t)] = 0;
  touched_stages_.clear();
  journal_.clear();
  std::vector<Change> lost;
  for (Index g = 0; g < program.gap_count(); ++g)
    if (program.is_lost(g)) lost.push_back({g, KEEP});
  work_cap_ = std::numeric_limits<std::size_t>::max();
  possible_ = lost.empty() || apply(lost);
  work_cap_ = 16 * closure_cap_;
  if (possible_) commit();
}

void Retention::set_budget(Bytes budget) {
  budget_ = budget;
  live_.set_budget(budget);
}

const Span* Retention::span_at(Index value, Index stage) const {
  const std::vector<Span>& spans = spans_[at(value)];
  const auto span =
      std::lower_bound(spans.begin(), spans.end(), stage, [](const Span& s, Index t) { return s.end < t; });
  return span != spans.end() && span->start <= stage ? &*span : nullptr;
}

bool Retention::available(Index value, Index stage) const {
  const Index gap = program_->gap_at(value, stage);
  Index retention = retention_[at(gap)];
  if (retention == KEEP) return true;
  Index item = program_->producer[at(value)];
  if (is_by_fetch(retention)) retention = by_fetch(retention), item = program_->stage_count() + value;
  if (retention == NEVER) return false;
  const std::vector<Index>& recomputations = recompute_at_[at(item)];
  const auto after = std::lower_bound(recomputations.begin(), recomputations.end(), stage);
  // A recomputation before the gap cannot count: the retention is larger than the gap's start whenever it is not KEEP.
  return after != recomputations.begin() && *(after - 1) >= retention;
}

// --- closures -------------------------------------------------------------------------------------------------

bool Retention::enter(Index recipe, Index stage, std::size_t size) {
  if (stage > program_->recompute_through[at(recipe)] || program_->part[at(recipe)] != program_->part[at(stage)])
    return false;
  if (size + stack_.size() >= closure_cap_) return false;
  seen_[at(recipe)] = closure_number_;
  stack_.push_back({recipe, 0});
  return true;
}

bool Retention::closure(Index stage, std::vector<Index>& order) {
  order.clear();
  ++closure_number_;
  stack_.clear();
  stack_.push_back({stage, 0});
  while (!stack_.empty()) {
    Frame& frame = stack_.back();
    const Slice reads = program_->reads[frame.recipe];
    if (frame.next == reads.size()) {
      if (program_->fetches) fetch_missing(frame.recipe, stage, order);
      if (frame.recipe != stage) order.push_back(frame.recipe);
      stack_.pop_back();
      continue;
    }
    const Index value = reads[frame.next++];
    const Index recipe = program_->producer[at(value)];
    if (seen_[at(recipe)] == closure_number_ || available(value, stage) || is_fetched(value, stage)) continue;
    if (!enter(recipe, stage, order.size())) return false;
  }
  return true;
}

// What the recipe reads and only a prefetch may bring comes when all else is there.
void Retention::fetch_missing(Index recipe, Index stage, std::vector<Index>& order) {
  for (Index value : program_->reads[recipe]) {
    const Index item = program_->stage_count() + value;
    if (!is_fetched(value, stage) || seen_[at(item)] == closure_number_ || available(value, stage)) continue;
    seen_[at(item)] = closure_number_;
    order.push_back(item);
  }
}

void Retention::push_stage(Index stage) {
  if (is_dirty_[at(stage)]) return;
  is_dirty_[at(stage)] = 1;
  dirty_.push(stage);
}

// Stages of the gap, later than `after`, that ask for the value: its use, and recomputations of its readers.
void Retention::ask_again(Index value, Index gap, Index after) {
  const Index low = std::max(after, program_->gap_start(gap)), high = program_->gap_end(gap);
  const Slice uses = program_->uses[value];
  const bool last_gap = gap - program_->first_gap(value) == uses.size();
  if (!last_gap && high > low) push_stage(high);
  for (Index reader : uses) {
    const std::vector<Index>& stages = recompute_at_[at(reader)];
    for (auto s = std::upper_bound(stages.begin(), stages.end(), low); s != stages.end() && *s <= high; ++s)
      push_stage(*s);
  }
}

void Retention::note_recompute(Index item, Index stage, bool added) {
  std::vector<Index>& stages = recompute_at_[at(item)];
  const auto where = std::lower_bound(stages.begin(), stages.end(), stage);
  if (added) {
    stages.insert(where, stage);
  } else {
    stages.erase(where);
  }
  if (program_->fetches && item >= program_->stage_count())
    return note_fetch(item - program_->stage_count(), added, stages.size() == (added ? 1 : 0));
  cost_.compute += added ? program_->recompute_time[at(item)] : -program_->recompute_time[at(item)];
}

// `only`: there is no other prefetch of the value.
void Retention::note_fetch(Index value, bool added, bool only) {
  const Bytes sent = only ? program_->send_B[at(value)] : 0, fetched = program_->fetch_B[at(value)];
  cost_.sent += added ? sent : -sent;
  cost_.fetched += added ? fetched : -fetched;
}

// Makes `order` the recomputations of the stage and leaves the old ones in it.
void Retention::replace_recomputations(Index stage, std::vector<Index>& order) {
  std::vector<Index>& now = rec_[at(stage)];
  const auto changed = [&](Index recipe, bool added) {
    note_recompute(recipe, stage, added);
    if (program_->fetches && recipe >= program_->stage_count()) return refetched(recipe - program_->stage_count(), stage);
    for (Index v : program_->reads[recipe]) touch_value(v);
    for (Index v : program_->outputs[recipe]) {
      touch_value(v);
      const Index gap = program_->gap_at(v, stage);
      // A recomputation before the retention is transient: nobody later can tell.
      if (retention_[at(gap)] > KEEP && retention_[at(gap)] <= stage) ask_again(v, gap, stage);
    }
  };
  difference(now, order, [&](Index r) { changed(r, false); }, [&](Index r) { changed(r, true); });
  now.swap(order);
}

// A prefetch of the value before the stage has come or gone.
void Retention::refetched(Index value, Index stage) {
  touch_value(value);
  for (const Span& span : spans_[at(value)]) touch_stage(span.end);  // where a run may take it over or not
  const Index gap = program_->gap_at(value, stage), retention = retention_[at(gap)];
  if (is_by_fetch(retention) && by_fetch(retention) <= stage) ask_again(value, gap, stage);
}

// --- changes ----------------------------------------------------------------------------------------------------

void Retention::touch_value(Index value) {
  if (value_touched_[at(value)]) return;
  value_touched_[at(value)] = 1;
  touched_values_.push_back(value);
}

void Retention::touch_stage(Index stage) {
  if (stage_touched_[at(stage)]) return;
  stage_touched_[at(stage)] = 1;
  touched_stages_.push_back(stage);
}

bool Retention::change(const std::vector<Change>& changes) {
  journal_.cost = cost_;
  work_ = 0;
  for (const auto [gap, retention] : changes) {
    const Index value = program_->gap_value[at(gap)];
    journal_.taus.push_back({gap, retention_[at(gap)]});
    retention_[at(gap)] = retention == KEEP && program_->is_lost(gap) ? program_->lost_retention(gap) : retention;
    touch_value(value);
    ask_again(value, gap, -1);
  }
  bool possible = true;
  while (!dirty_.empty()) {
    const Index stage = dirty_.top();
    dirty_.pop();
    is_dirty_[at(stage)] = 0;
    if (!possible) continue;
    possible = closure(stage, order_);
    work_ += order_.size();
    possible = possible && work_ <= work_cap_;
    if (!possible || order_ == rec_[at(stage)]) continue;
    touch_stage(stage);
    replace_recomputations(stage, order_);
    journal_.recomputations.emplace_back(stage, order_);
  }
  return possible;
}

bool Retention::apply(const std::vector<Change>& changes) {
  const bool possible = change(changes);
  if (possible) {
    for (Index v : touched_values_) {
      build_spans(v, fresh_spans_);
      if (fresh_spans_ == spans_[at(v)]) continue;
      set_spans(v, fresh_spans_);
      journal_.spans.emplace_back(v, fresh_spans_);
    }
    for (Index t : touched_stages_) {
      const Bytes local = simulate(t);
      if (local == local_[at(t)]) continue;
      journal_.local.emplace_back(t, local_[at(t)]);
      set_local(t, local);
    }
  }
  for (Index v : touched_values_) value_touched_[at(v)] = 0;
  for (Index t : touched_stages_) stage_touched_[at(t)] = 0;
  touched_values_.clear();
  touched_stages_.clear();
  if (!possible) undo();
  return possible;
}

void Retention::undo() {
  for (auto e = journal_.local.rbegin(); e != journal_.local.rend(); ++e) set_local(e->first, e->second);
  for (auto e = journal_.spans.rbegin(); e != journal_.spans.rend(); ++e) set_spans(e->first, e->second);
  for (Index t : touched_stages_) stage_touched_[at(t)] = 0;
  touched_stages_.clear();
  for (auto e = journal_.recomputations.rbegin(); e != journal_.recomputations.rend(); ++e) {
    std::vector<Index>& now = rec_[at(e->first)];
    difference(now, e->second, [&](Index r) { note_recompute(r, e->first, false); },
               [&](Index r) { note_recompute(r, e->first, true); });
    now.swap(e->second);
  }
  for (auto e = journal_.taus.rbegin(); e != journal_.taus.rend(); ++e) retention_[at(e->gap)] = e->retention;
  cost_ = journal_.cost;
  journal_.clear();
}

bool Retention::assign(const std::vector<Index>& taus) {
  std::vector<Change> changes;
  for (Index g = 0; g < program_->gap_count(); ++g)
    if (taus[at(g)] != retention_[at(g)]) changes.push_back({g, taus[at(g)]});
  work_cap_ = std::numeric_limits<std::size_t>::max();
  const bool possible = apply(changes);
  work_cap_ = 16 * closure_cap_;
  if (possible) commit();
  return possible;
}

bool Retention::is_valid() const {
  Retention fresh(*program_, budget_, static_cast<Index>(closure_cap_));
  if (!possible_ || !fresh.assign(retention_)) return false;
  if (!live_.is_valid() || fresh.excess() != excess()) return false;
  for (Index t = 0; t < program_->stage_count(); ++t)
    if (fresh.live(t) != live(t)) return false;
  return fresh.rec_ == rec_ && fresh.recompute_at_ == recompute_at_ && fresh.spans_ == spans_ && fresh.cost_ == cost_;
}

}  // namespace lowtide
