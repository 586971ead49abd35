#include "annealer.hpp"

#include <algorithm>
#include <cmath>

#include "moves.hpp"

namespace lowtide {

namespace {

constexpr Index MIRRORED = 12;   // percent of the proposals, where layers repeat
constexpr Index OTHER_CANDIDATE = 25;  // percent of the proposals, where values can be prefetched
constexpr std::size_t MOST = 4096;  // changes in one proposal

// Per stage how many stretches begin at it or before, less those that ended before it.
std::vector<Index> stretches_over(Index stages, const std::vector<StageRange>& focus) {
  std::vector<Index> over(static_cast<std::size_t>(stages) + 1, 0);
  for (const StageRange& w : focus) {
    const Index first = std::max<Index>(0, w.first), last = std::min<Index>(stages - 1, w.last);
    if (first > last) continue;
    ++over[static_cast<std::size_t>(first)];
    --over[static_cast<std::size_t>(last) + 1];
  }
  for (std::size_t t = 1; t < over.size(); ++t) over[t] += over[t - 1];
  return over;
}

}  // namespace

// The seed is mixed first: neighbouring seeds would walk through the same numbers, one step apart.
Annealer::Annealer(Retention& state, const AnnealingRun& annealing_run, Twins twins, const std::vector<StageRange>& focus)
    : state_(&state),
      annealing_run_(annealing_run),
      random_(Random(annealing_run.seed).next()),
      twins_(std::move(twins)),
      lowest_peak_(state.peak()) {
  const Program& program = state.program();
  listed_.assign(at(program.gap_count()), 0);
  if (!twins_.empty()) changed_.assign(at(program.gap_count()), 0);
  if (!focus.empty()) {
    const std::vector<Index> over = stretches_over(program.stage_count(), focus);
    for (Index g = 0; g < program.gap_count(); ++g)
      outside_.push_back(over[at(program.gap_start(g))] == 0 && over[at(program.gap_end(g))] == 0);
  }
  for (Index g = 0; g < program.gap_count(); ++g) {
    if (!outside_.empty() && outside_[at(g)]) continue;
    const Index value = program.gap_value[at(g)];
    const bool last = g - program.first_gap(value) == program.uses[value].size();
    // Between neighbouring stages nothing lies idle.
    if (program.is_free(g) && (last || program.gap_end(g) > program.gap_start(g) + 1)) free_.push_back(g);
    if (state.retention(g) != KEEP) note_dropped(g);
  }
  Picos total = 0;
  for (Picos t : program.run_time) total += t;
  scale_ = std::max(1.0, static_cast<double>(total) / std::max<Index>(1, program.stage_count()));
  weight_ = std::max(1.0, static_cast<double>(total)) / std::max<double>(1.0, static_cast<double>(state.budget()));
  temperature_ = annealing_run.start * scale_;
  const double steps = std::max(1.0, static_cast<double>(annealing_run.moves));
  cool_ = std::pow(std::max(1e-9, annealing_run.end) / std::max(1e-9, annealing_run.start), 1.0 / steps);
  energy_ = energy();
  lowest_taus_ = state.taus();
  remember();
}

double Annealer::energy() const {
  double energy = static_cast<double>(state_->time());
  if (state_->fits()) return energy;
  const double over = static_cast<double>(state_->peak() - state_->budget());
  const double mean = static_cast<double>(state_->excess()) / state_->program().stage_count();
  return energy + weight_ * (over + 2.0 * mean);
}

Index Annealer::pick_gap() { return free_[at(random_.below(static_cast<Index>(free_.size())))]; }

// A stage inside the gap, often one above the budget when there is any.
Index Annealer::pick_stage(Index gap) {
  const Index start = state_->program().gap_start(gap), end = state_->program().gap_end(gap);
  const Index length = end - start;
  Index stage = start + 1 + random_.below(std::max<Index>(1, length));
  if (!state_->fits())
    for (int i = 0; i < 3; ++i) {
      const Index other = start + 1 + random_.below(std::max<Index>(1, length));
      if (state_->live(other) > state_->live(stage)) stage = other;
    }
  return std::min(stage, end);
}

void Annealer::note_dropped(Index gap) {
  if (listed_[at(gap)] || (!outside_.empty() && outside_[at(gap)])) return;
  listed_[at(gap)] = 1;
  dropped_.push_back(gap);
}

Index Annealer::pick_dropped() {
  while (!dropped_.empty()) {
    const std::size_t i = at(random_.below(static_cast<Index>(dropped_.size())));
    if (state_->retention(dropped_[i]) != KEEP) return dropped_[i];
    listed_[at(dropped_[i])] = 0;
    dropped_[i] = dropped_.back();
    dropped_.pop_back();
  }
  return -1;
}

void Annealer::flip(Index gap) {
  const Program& program = state_->program();
  const Index start = program.gap_start(gap), end = program.gap_end(gap);
  const Index now = state_->retention(gap);
  const Index dice = random_.below(100);
  Index retention;
  if (now == KEEP) {
    retention = dice < 75 ? start + 1 : dice < 85 ? NEVER : start + 1 + random_.below(std::max<Index>(1, end - start));
  } else if (dice < 60) {
    retention = KEEP;
  } else {
    retention = dice < 70 ? NEVER : dice < 80 ? start + 1 : start + 1 + random_.below(std::max<Index>(1, end - start));
  }
  if (retention > KEEP) retention = blocking(*state_, gap, retention);
  if (retention != now) changes_.push_back({gap, retention});
}

// Says how what the proposal drops is rematerialised: by prefetch if that costs at most so many recomputations.
void Annealer::choose_candidates() {
  constexpr double FEW[] = {0.0, 0.5, 1.0, 2.0, 4.0};
  const Program& program = state_->program();
  const Index dice = random_.below(8);
  if (dice >= 5) return;
  const double recomputations = FEW[dice];
  for (Change& c : changes_) {
    const Index value = program.gap_value[at(c.gap)];
    if (c.retention == KEEP || !program.can_fetch(value) || !program.can_recompute(c.gap)) continue;
    const Picos recompute = program.recompute_time[at(program.producer[at(value)])];
    const bool fetch = static_cast<double>(fetch_time(*state_, value)) <= recomputations * static_cast<double>(recompute);
    if (fetch != is_by_fetch(c.retention)) c.retention = by_fetch(c.retention);
  }
}

// A gap that is not kept, one with a prefetch if a few tries find any.
Index Annealer::pick_fetched() {
  Index gap = pick_dropped();
  for (int i = 0; i < 6 && gap >= 0 && !is_by_fetch(state_->retention(gap)); ++i) gap = pick_dropped();
  return gap;
}

// Keeps what is prefetched, and drops others across the same stage until as many bytes are gone.
void Annealer::keep_for_others(Index gap, Index stage) {
  const Program& program = state_->program();
  Bytes capacity = -program.size[at(program.gap_value[at(gap)])];
  changes_.push_back({gap, KEEP});
  for (int i = 0; i < 48 && capacity < 0; ++i) {
    const Index other = pick_gap(), value = program.gap_value[at(other)];
    if (other == gap || program.gap_start(other) >= stage || program.gap_end(other) <= stage) continue;
    const std::size_t before = changes_.size();
    if (!drop_across(*state_, value, stage, changes_)) continue;
    drop_parents(*state_, value, stage, random_.below(3), changes_);
    for (std::size_t c = before; c < changes_.size(); ++c)
      capacity += program.size[at(program.gap_value[at(changes_[c].gap)])];
  }
}

// Rematerialises by the other means: recomputes, with what that reads if it was prefetched; or prefetches,
// without what it is made of. Or keeps what was prefetched, and drops others.
void Annealer::change_candidate() {
  const Program& program = state_->program();
  const Index gap = random_.below(2) == 0 ? pick_fetched() : pick_dropped();
  if (gap < 0) return;
  const Index value = program.gap_value[at(gap)], stage = program.gap_end(gap);
  if (!program.can_fetch(value)) return;
  const bool fetched = is_by_fetch(state_->retention(gap));
  if (fetched && random_.below(3) == 0) return keep_for_others(gap, pick_stage(gap));
  if (!program.can_recompute(gap)) return;
  changes_.push_back({gap, by_fetch(state_->retention(gap))});
  const Index depth = random_.below(4);
  if (!fetched) {
    drop_parents(*state_, value, stage, depth, changes_);
  } else if (random_.below(2) == 0) {
    recompute_parents(*state_, value, stage, depth, changes_);
  } else if (depth > 0) {
    for (Index parent : program.reads[program.producer[at(value)]])
      keep_across(*state_, parent, stage, depth - 1, changes_);
  }
}

// Exchanges what becomes of a value and of one that it is made of, or that is made of it: a kept value goes along.
void Annealer::slide(Index gap) {
  const Program& program = state_->program();
  const Index value = program.gap_value[at(gap)], stage = pick_stage(gap);
  const Slice reads = program.reads[program.producer[at(value)]], uses = program.uses[value];
  const bool up = random_.below(2) == 0;
  if ((up ? reads : uses).size() == 0) return;
  Index other;
  if (up) {
    other = reads[random_.below(reads.size())];
  } else {
    const Slice made = program.outputs[uses[random_.below(uses.size())]];
    if (made.size() == 0) return;
    other = made[random_.below(made.size())];
  }
  if (program.producer[at(other)] >= stage) return;
  const Index adjacent = program.gap_at(other, stage);
  if (adjacent == gap || !program.is_free(adjacent)) return;
  const auto moved = [&](Index from, Index to) {
    Index retention = state_->retention(from);
    if (retention == KEEP) return retention;
    const bool fetched = program.can_fetch(program.gap_value[at(to)]) && (is_by_fetch(retention) || !program.can_recompute(to));
    if (is_by_fetch(retention)) retention = by_fetch(retention);
    if (retention == program.gap_start(from) + 1) {
      retention = program.gap_start(to) + 1;
    } else if (retention != NEVER) {
      retention = std::max(program.gap_start(to) + 1, std::min(retention, program.gap_end(to)));
    }
    return fetched ? by_fetch(retention) : retention;
  };
  const Index here = moved(adjacent, gap), there = moved(gap, adjacent);
  if (here == state_->retention(gap) && there == state_->retention(adjacent)) return;
  changes_.push_back({gap, here});
  changes_.push_back({adjacent, there});
}

void Annealer::propose() {
  const Program& program = state_->program();
  changes_.clear();
  if (program.fetches) {
    if (random_.below(100) < OTHER_CANDIDATE) return change_candidate();
    propose_drops();
    return choose_candidates();
  }
  propose_drops();
}

void Annealer::propose_drops() {
  const Program& program = state_->program();
  const Index dice = random_.below(100);
  const Index gap = pick_gap();
  const Index value = program.gap_value[at(gap)];
  if (dice < 18) {
    flip(gap);
  } else if (dice < 30) {
    slide(gap);
  } else if (dice < 55) {
    const Index stage = pick_stage(gap);
    if (!drop_across(*state_, value, stage, changes_)) return;
    if (random_.below(2) == 0) drop_siblings(*state_, value, stage, changes_);
    drop_parents(*state_, value, stage, random_.below(6), changes_);
  } else if (dice < 75) {
    const Index kept = pick_dropped();
    if (kept < 0) return flip(gap);
    keep_across(*state_, program.gap_value[at(kept)], program.gap_end(kept), random_.below(3), changes_);
  } else if (dice < 90) {
    // Keep one, drop another that lies across the same stage.
    const Index kept = pick_dropped();
    if (kept < 0) return flip(gap);
    const Index stage = pick_stage(kept);
    changes_.push_back({kept, KEEP});
    for (int i = 0; i < 12; ++i) {
      const Index other = pick_gap();
      if (other == kept || program.gap_start(other) >= stage || program.gap_end(other) <= stage) continue;
      if (drop_across(*state_, program.gap_value[at(other)], stage, changes_)) break;
    }
  } else {
    const Index count = 2 + random_.below(3);
    for (Index i = 0; i < count; ++i) {
      const Index other = pick_gap();
      const auto same = [&](const Change& c) { return c.gap == other; };
      if (std::none_of(changes_.begin(), changes_.end(), same)) flip(other);
    }
  }
}

// Repeats the changes in a run of other layers, next to the one where they are.
void Annealer::mirror() {
  const Program& program = state_->program();
  const Index pivot = changes_.front().gap, twin_class = twins_.class_of(pivot);
  if (twin_class < 0) return;
  const Slice row = twins_.members(twin_class);
  const std::vector<Change> here = changes_;
  for (const Change& c : here) changed_[at(c.gap)] = 1;
  Index first = 0, last = row.size() - 1;
  if (random_.below(4) != 0) {
    const Index count = 1 + random_.below(std::min<Index>(row.size(), Index{1} << random_.below(7)));
    first = std::max<Index>(0, twins_.place(pivot) - random_.below(count + 1));
    last = std::min(last, first + count);
  }
  for (Index i = first; i <= last && changes_.size() < MOST; ++i) {
    const Index shift = program.gap_start(row[i]) - program.gap_start(pivot);
    if (shift == 0) continue;
    for (const Change& c : here) {
      const Index twin = c.gap == pivot ? row[i] : twins_.shifted(program, c.gap, shift);
      if (twin < 0 || changed_[at(twin)] || !program.is_free(twin)) continue;
      const Index retention = translated(program, c.gap, c.retention, twin);
      if (retention == state_->retention(twin)) continue;
      if (is_by_fetch(retention) ? !program.can_fetch(program.gap_value[at(twin)]) : retention != KEEP && !program.can_recompute(twin))
        continue;
      changed_[at(twin)] = 1;
      changes_.push_back({twin, retention});
    }
  }
  for (const Change& c : changes_) changed_[at(c.gap)] = 0;
}

void Annealer::remember() {
  if (!found_) {
    const Bytes peak = state_->peak();
    if (peak < lowest_peak_) {
      lowest_peak_ = peak;
      lowest_taus_ = state_->taus();
    }
  }
  if (!state_->fits() || (found_ && state_->time() >= best_time_)) return;
  found_ = true;
  best_time_ = state_->time();
  best_taus_ = state_->taus();
}

void Annealer::adapt() {
  weight_ *= state_->fits() ? 0.995 : 1.03;
  energy_ = energy();
}

bool Annealer::run(std::int64_t moves) {
  if (free_.empty()) return true;
  for (std::int64_t i = 0; i < moves && !done(); ++i) {
    ++tried_;
    temperature_ *= cool_;
    if (tried_ % 1000 == 0) adapt();
    propose();
    if (!twins_.empty() && !changes_.empty() && random_.below(100) < MIRRORED) mirror();
    if (changes_.empty() || !state_->apply(changes_)) continue;
    const double energy = this->energy();
    if (energy <= energy_ || energy - energy_ <= -temperature_ * std::log(random_.unit())) {
      ++accepted_;
      energy_ = energy;
      for (const Change& c : changes_)
        if (c.retention != KEEP) note_dropped(c.gap);
      state_->commit();
      remember();
    } else {
      state_->undo();
    }
  }
  return done();
}

bool Annealer::is_valid() const {
  const bool whole = !found_ || best_taus_.size() == state_->taus().size();
  return state_->is_valid() && twins_.is_valid() && whole && tried_ >= accepted_;
}

}  // namespace lowtide
