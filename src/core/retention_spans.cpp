// Spans and bytes of a retention: when values are resident, and how much is live.
#include <algorithm>

#include "retention.hpp"

namespace lowtide {

// The stages in which the value is rematerialised: by recomputations, or by prefetches in the gaps that have them.
const std::vector<Index>& Retention::arrivals(Index value) {
  const std::vector<Index>& recomputations = recompute_at_[at(program_->producer[at(value)])];
  if (!program_->can_fetch(value)) return recomputations;
  arrivals_ = recompute_at_[at(program_->stage_count() + value)];
  for (Index stage : recomputations)
    if (!is_fetched(value, stage)) arrivals_.push_back(stage);
  std::sort(arrivals_.begin(), arrivals_.end());
  return arrivals_;
}

void Retention::build_spans(Index value, std::vector<Span>& spans) {
  spans.clear();
  const Index producer = program_->producer[at(value)];
  const Slice uses = program_->uses[value];
  const std::vector<Index>& recomputations = arrivals(value);
  events_.assign(uses.begin(), uses.end());
  for (Index reader : uses) events_.insert(events_.end(), recompute_at_[at(reader)].begin(), recompute_at_[at(reader)].end());
  std::sort(events_.begin(), events_.end());
  events_.erase(std::unique(events_.begin(), events_.end()), events_.end());

  Span span{producer, producer};
  bool used = false;
  Index k = 0, last = producer;
  auto recompute = recomputations.begin();
  auto event = events_.begin();
  const auto open = [&](Index stage) {
    if (used) spans.push_back(span);
    span = {stage, stage};
    used = false;
  };
  while (event != events_.end() || recompute != recomputations.end()) {
    const Index stage = std::min(event == events_.end() ? NEVER : *event, recompute == recomputations.end() ? NEVER : *recompute);
    const bool is_use = event != events_.end() && *event == stage;
    const bool is_recompute = recompute != recomputations.end() && *recompute == stage;
    const Index retention = retention_[at(program_->first_gap(value) + k)];
    const bool available = last >= (is_by_fetch(retention) ? by_fetch(retention) : retention);
    if (is_recompute && !available) open(stage);
    if (is_use) {
      span.end = stage;
      used = true;
      ++event;
    }
    if (is_recompute) {
      last = stage;
      ++recompute;
    }
    if (k < uses.size() && uses[k] == stage) {
      last = stage;
      ++k;
    }
  }
  if (used) spans.push_back(span);
}

// Changes the bytes that are live when the stages first .. last begin.
void Retention::occupy(Index first, Index last, Bytes size) { live_.add(first, last, size); }

// Where `spans` cover a stage and `others` do not: a value is live when stages start + 1 .. end of a span begin. Its
// first and last stage are left to simulate().
void Retention::occupy_beyond(const std::vector<Span>& spans, const std::vector<Span>& others, Bytes size) {
  auto other = others.begin();
  for (const Span& span : spans) {
    Index first = span.start + 1;
    while (other != others.end() && other->end < span.start) ++other;
    const bool same = other != others.end() && *other == span;
    if (same) continue;
    touch_stage(span.start);
    touch_stage(span.end);
    for (auto o = other; o != others.end() && o->start < span.end; ++o) {
      occupy(first, o->start, size);
      first = std::max(first, o->end + 1);
    }
    occupy(first, span.end, size);
  }
}

// Makes `spans` those of the value and leaves the old ones in it.
void Retention::set_spans(Index value, std::vector<Span>& spans) {
  std::vector<Span>& now = spans_[at(value)];
  const Bytes size = program_->size[at(value)];
  occupy_beyond(now, spans, -size);
  occupy_beyond(spans, now, size);
  now.swap(spans);
}

// The value that the run of `recipe`, the run-th in the stage, takes over; -1 for none. Requires last_read_.
Index Retention::taken(Index recipe, Index stage, Index run) const {
  for (Index v : program_->takeovers[recipe]) {
    if (last_read_[at(v)] != run) continue;
    if (program_->can_fetch(v)) {
      const std::vector<Index>& fetches = recompute_at_[at(program_->stage_count() + v)];
      if (!fetches.empty() && fetches.back() > stage) continue;
    }
    const Span* span = span_at(v, stage);
    if (span && span->end == stage && span->start >= program_->opened[at(stage)]) return v;
  }
  return -1;
}

Bytes Retention::simulate(Index stage) {
  const std::vector<Index>& recomputations = rec_[at(stage)];
  const Index count = static_cast<Index>(recomputations.size()) + 1;
  const auto recipe_at = [&](Index i) { return i + 1 == count ? stage : recomputations[at(i)]; };
  const Index stages = program_->stage_count();
  const auto reads_at = [&](Index i) {
    return recipe_at(i) < stages ? program_->reads[recipe_at(i)] : Slice{nullptr, nullptr};
  };
  for (Index i = 0; i < count; ++i)
    for (Index v : reads_at(i)) last_read_[at(v)] = i;
  Bytes live = 0, top = 0;
  for (Index i = 0; i < count; ++i) {
    const Index recipe = recipe_at(i);
    if (recipe >= stages) {
      live += program_->size[at(recipe - stages)];
      top = std::max(top, live);
      continue;
    }
    const Index gone = taken(recipe, stage, i);
    const std::vector<Bytes>& peak = gone >= 0         ? program_->takeover_peak
                                     : recipe == stage ? program_->trace_peak
                                                       : program_->recompute_peak;
    top = std::max(top, live + peak[at(recipe)]);
    if (gone >= 0) live -= program_->size[at(gone)];
    for (Index v : program_->outputs[recipe]) {
      if (recipe != stage && is_fetched(v, stage)) continue;
      const Span* span = span_at(v, stage);
      if (span && span->start == stage && (span->end > stage || last_read_[at(v)] > i)) live += program_->size[at(v)];
    }
    top = std::max(top, live);
    for (Index v : program_->reads[recipe]) {
      if (last_read_[at(v)] != i || v == gone) continue;
      const Span* span = span_at(v, stage);
      if (span && span->end == stage) live -= program_->size[at(v)];
    }
  }
  for (Index i = 0; i < count; ++i)
    for (Index v : reads_at(i)) last_read_[at(v)] = -1;
  return top;
}

void Retention::set_local(Index stage, Bytes local) {
  live_.add(stage, stage, local - local_[at(stage)]);
  local_[at(stage)] = local;
}

}  // namespace lowtide
