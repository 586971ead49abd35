#include "arena.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "arena_window.hpp"

namespace lowtide {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

Bytes whole_units(Bytes capacity_B, Bytes alignment_B) {
  require(alignment_B > 0 && (alignment_B & (alignment_B - 1)) == 0, "an arena's alignment must be a power of two");
  require(capacity_B >= alignment_B, "an arena's capacity must hold at least one alignment unit");
  require(capacity_B <= Bytes{1} << 62, "an arena's capacity must be at most 2^62 bytes");
  return capacity_B & -alignment_B;
}

}  // namespace

Arena::Arena(Bytes capacity_B, Bytes alignment_B) : spans_(whole_units(capacity_B, alignment_B), alignment_B) {}

Arena::Range Arena::clipped(Bytes lo_B, Bytes hi_B) const {
  const Bytes hi = std::clamp<Bytes>(hi_B, 0, spans_.capacity_B());
  return {std::clamp<Bytes>(lo_B, 0, hi), hi};
}

Arena::Range Arena::aligned(Bytes lo_B, Bytes hi_B) const {
  const Range range = clipped(lo_B, hi_B);
  const Bytes hi = spans_.round_down(range.hi_B);
  return {std::min(spans_.round_up(range.lo_B), hi), hi};
}

// What a block of this size reserves; more than the capacity for any size that is.
Bytes Arena::reserved_for(Bytes size_B) const {
  require(size_B >= 0, "a block's size must not be negative");
  if (size_B > spans_.capacity_B()) return spans_.capacity_B() + spans_.alignment_B();
  return spans_.round_up(std::max<Bytes>(size_B, 1));
}

Bytes Arena::allocate(Bytes size_B, Bytes lo_B, Bytes hi_B, End end, std::uint64_t tag) {
  const Guard guard(mutex_);
  const Bytes need = reserved_for(size_B);
  const Range range = aligned(lo_B, hi_B);
  const Spans::Place place = spans_.best_fit(need, range.lo_B, range.hi_B, end);
  if (place.hole == NO_SPAN) {
    note_failure(need, range);
    return NOWHERE;
  }
  serve(place, size_B, tag, end);
  return place.offset_B;
}

bool Arena::allocate_at(Bytes offset_B, Bytes size_B, std::uint64_t tag, End end) {
  const Guard guard(mutex_);
  const Bytes need = reserved_for(size_B);
  require(spans_.round_down(offset_B) == offset_B, "a block must begin at a multiple of the alignment");
  if (offset_B >= 0 && need <= spans_.capacity_B() && offset_B <= spans_.capacity_B() - need) {
    const SpanId id = spans_.covering(offset_B);
    if (spans_[id].is_hole() && offset_B + need <= spans_[id].end_B()) {
      serve({id, offset_B}, size_B, tag, end);
      return true;
    }
  }
  ++refusals_;
  return false;
}

Bytes Arena::free(Bytes offset_B, std::uint64_t& tag, std::uint64_t kept) {
  const Guard guard(mutex_);
  const SpanId id = spans_.block_at(offset_B);
  if (id == NO_SPAN) return NOWHERE;
  tag = spans_[id].tag;
  if ((tag & kept) != 0) return NOWHERE;
  const Bytes size_B = spans_[id].requested_B;
  spans_.release(id);
  ++frees_;
  verify();
  return size_B;
}

void Arena::serve(const Spans::Place& place, Bytes size_B, std::uint64_t tag, End end) {
  note_reach(spans_.take(place.hole, place.offset_B, reserved_for(size_B), size_B, tag, end));
  ++allocations_;
  peak_in_use_B_ = std::max(peak_in_use_B_, spans_.in_use_B());
  peak_requested_B_ = std::max(peak_requested_B_, spans_.requested_B());
  verify();
}

void Arena::note_failure(Bytes need_B, Range range) {
  const Bytes free_B = range.hi_B - range.lo_B - spans_.usage(range.lo_B, range.hi_B).in_use_B;
  ++(free_B < need_B ? failures_for_capacity_ : failures_for_contiguity_);
}

void Arena::note_reach(SpanId block) {
  const Spans::Span& span = spans_[block];
  if (span.end == End::low)
    low_high_B_ = std::max(low_high_B_, span.end_B());
  else
    top_depth_B_ = std::max(top_depth_B_, spans_.capacity_B() - span.offset_B);
}

Bytes Arena::size_of(Bytes offset_B) const {
  const Guard guard(mutex_);
  const SpanId id = spans_.block_at(offset_B);
  return id == NO_SPAN ? NOWHERE : spans_[id].requested_B;
}

bool Arena::find(Bytes byte_B, Block& block) const {
  const Guard guard(mutex_);
  if (byte_B < 0 || byte_B >= spans_.capacity_B()) return false;
  const SpanId id = spans_.covering(byte_B);
  if (spans_[id].is_hole()) return false;
  block = spans_.block(id);
  return true;
}

bool Arena::set_tag(Bytes offset_B, std::uint64_t tag) {
  const Guard guard(mutex_);
  const SpanId id = spans_.block_at(offset_B);
  if (id != NO_SPAN) spans_.set_tag(id, tag);
  return id != NO_SPAN;
}

std::vector<Block> Arena::blocks(Bytes lo_B, Bytes hi_B) const {
  std::vector<Block> blocks;
  visit_blocks(lo_B, hi_B, [&](const Block& block) { blocks.push_back(block); });
  return blocks;
}

Usage Arena::in_use_within(Bytes lo_B, Bytes hi_B) const {
  const Guard guard(mutex_);
  const Range range = clipped(lo_B, hi_B);
  return spans_.usage(range.lo_B, range.hi_B);
}

void Arena::visit_holes(const VisitHole& visit) const {
  const Guard guard(mutex_);
  for (SpanId id = spans_.covering(0); id != NO_SPAN; id = spans_[id].next)
    if (spans_[id].is_hole()) visit(spans_[id].offset_B, spans_[id].end_B());
}

Window Arena::cheapest_window(Bytes need_B, Bytes lo_B, Bytes hi_B, const Cost& cost) const {
  const Guard guard(mutex_);
  const Bytes need = reserved_for(need_B);
  const Range range = aligned(lo_B, hi_B);
  Window window;
  if (need > range.hi_B - range.lo_B) return window;
  std::vector<SpanId> ids;
  std::vector<Stretch> stretches;
  const SpanId start = spans_.covering(range.lo_B);
  for (SpanId id = start; id != NO_SPAN && spans_[id].offset_B < range.hi_B; id = spans_[id].next) {
    const Spans::Span& span = spans_[id];
    const double price = span.is_hole() ? 0 : cost(spans_.block(id));
    require(price >= 0, "a block's cost must be a number, and not negative");
    const Bytes yield_B = std::min(span.end_B(), range.hi_B) - std::max(span.offset_B, range.lo_B);
    ids.push_back(id);
    stretches.push_back({yield_B, price, span.is_hole() ? 0 : span.reserved_B});
  }
  const Run run = cheapest_run(stretches, need);
  if (!run.found()) return window;
  window.cost = run.cost;
  window.evicted_B = run.evicted_B;
  const auto is_hole = [&](std::size_t i) { return i < ids.size() && spans_[ids[i]].is_hole(); };
  std::size_t first = run.first, last = run.last;
  if (first > 0 && is_hole(first - 1)) --first;
  if (is_hole(last + 1)) ++last;
  for (std::size_t i = first; i <= last; ++i)
    if (!is_hole(i)) window.evicted.push_back(spans_.block(ids[i]));
  window.lo_B = std::max(spans_[ids[first]].offset_B, range.lo_B);
  window.hi_B = std::min(spans_[ids[last]].end_B(), range.hi_B);
  return window;
}

ArenaStatistics Arena::statistics() const {
  const Guard guard(mutex_);
  ArenaStatistics s{};
  s.capacity_B = spans_.capacity_B();
  s.alignment_B = spans_.alignment_B();
  s.in_use_B = spans_.in_use_B();
  s.requested_B = spans_.requested_B();
  s.peak_in_use_B = peak_in_use_B_;
  s.peak_requested_B = peak_requested_B_;
  s.low_high_B = low_high_B_;
  s.top_depth_B = top_depth_B_;
  s.high_water_B = std::min(low_high_B_ + top_depth_B_, spans_.capacity_B());
  s.largest_hole_B = spans_.largest_hole_B();
  s.blocks = spans_.blocks();
  s.holes = spans_.holes();
  s.allocations = allocations_;
  s.frees = frees_;
  s.moves = moves_;
  s.moved_B = moved_B_;
  s.failures_for_capacity = failures_for_capacity_;
  s.failures_for_contiguity = failures_for_contiguity_;
  s.refusals = refusals_;
  return s;
}

void Arena::reset_peaks() {
  const Guard guard(mutex_);
  peak_in_use_B_ = spans_.in_use_B();
  peak_requested_B_ = spans_.requested_B();
  low_high_B_ = top_depth_B_ = 0;
  for (SpanId id = spans_.covering(0); id != NO_SPAN; id = spans_[id].next)
    if (!spans_[id].is_hole()) note_reach(id);
  verify();
}

std::string Arena::check() const {
  const Guard guard(mutex_);
  return broken();
}

std::string Arena::broken() const {
  if (std::string what = spans_.check(); !what.empty()) return what;
  if (peak_in_use_B_ < spans_.in_use_B() || peak_requested_B_ < spans_.requested_B())
    return "a peak is below what is in use";
  if (allocations_ - frees_ != spans_.blocks()) return "the allocations less the frees are not the blocks";
  for (SpanId id = spans_.covering(0); id != NO_SPAN; id = spans_[id].next) {
    const Spans::Span& span = spans_[id];
    if (span.is_hole()) continue;
    const bool reached = span.end == End::low ? span.end_B() <= low_high_B_
                                              : spans_.capacity_B() - span.offset_B <= top_depth_B_;
    if (!reached) return "a block lies past the reach of its side";
  }
  return {};
}

void Arena::verify() const {
#ifdef LOWTIDE_CHECK
  if (const std::string what = broken(); !what.empty()) {
    std::fprintf(stderr, "lowtide: the arena's invariant does not hold: %s\n", what.c_str());
    std::abort();
  }
#endif
}

}  // namespace lowtide
