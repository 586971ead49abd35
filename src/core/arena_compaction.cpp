// Compaction: the members of Arena that move blocks.
#include <algorithm>
#include <limits>

#include "arena.hpp"
#include "arena_window.hpp"

namespace lowtide {

bool Arena::lies_within(SpanId id, Range range) const {
  return spans_[id].offset_B >= range.lo_B && spans_[id].end_B() <= range.hi_B;
}

// Moves a block down to to_B, where everything up to the block is free. Gives its new span, or NO_SPAN when refused.
SpanId Arena::slide(SpanId block, Bytes to_B, const Relocate& relocate, Slide& slid) {
  const Spans::Span old = spans_[block];
  if (!relocate(old.offset_B, to_B, old.requested_B)) return NO_SPAN;
  spans_.release(block);
  // A block from the high side that has slid far counts as one from the low side, if that is the smaller reach.
  const bool far = to_B + old.reserved_B - low_high_B_ < spans_.capacity_B() - to_B - top_depth_B_;
  const End end = far ? End::low : old.end;
  const SpanId moved = spans_.take(spans_.covering(to_B), to_B, old.reserved_B, old.requested_B, old.tag, end);
  note_reach(moved);
  ++slid.moves;
  ++moves_;
  slid.moved_B += old.requested_B;
  moved_B_ += old.requested_B;
  verify();
  return moved;
}

Slide Arena::compact(Bytes lo_B, Bytes hi_B, const Movable& movable, const Relocate& relocate) {
  const Guard guard(mutex_);
  const Range range = aligned(lo_B, hi_B);
  Slide slid;
  if (range.lo_B == range.hi_B) return slid;
  Bytes to_B = range.lo_B;  // everything from here to the span looked at is free
  for (SpanId id = spans_.covering(to_B); id != NO_SPAN && spans_[id].offset_B < range.hi_B; id = spans_[id].next) {
    if (spans_[id].is_hole()) continue;
    if (spans_[id].offset_B > to_B && lies_within(id, range) && movable(spans_.block(id))) {
      const SpanId moved = slide(id, to_B, relocate, slid);
      if (moved != NO_SPAN) id = moved;
    }
    to_B = spans_[id].end_B();
  }
  return slid;
}

Slide Arena::slide_for(Bytes need_B, Bytes lo_B, Bytes hi_B, const Movable& movable, const Relocate& relocate) {
  const Guard guard(mutex_);
  const Bytes need = reserved_for(need_B);
  const Range range = aligned(lo_B, hi_B);
  Slide slid;
  if (need > range.hi_B - range.lo_B) return slid;
  std::vector<Bytes> refused;  // offsets of blocks that would not move
  for (;;) {
    std::vector<SpanId> ids;
    std::vector<Stretch> stretches;
    const SpanId start = spans_.covering(range.lo_B);
    for (SpanId id = start; id != NO_SPAN && spans_[id].offset_B < range.hi_B; id = spans_[id].next) {
      const Spans::Span& span = spans_[id];
      ids.push_back(id);
      if (span.is_hole()) {
        stretches.push_back({std::min(span.end_B(), range.hi_B) - std::max(span.offset_B, range.lo_B), 0, 0});
        continue;
      }
      const bool stays = std::find(refused.begin(), refused.end(), span.offset_B) != refused.end();
      const bool moves = !stays && lies_within(id, range) && movable(spans_.block(id));
      const double pinned = std::numeric_limits<double>::infinity();
      stretches.push_back({0, moves ? static_cast<double>(span.requested_B) : pinned, 0});
    }
    // The cheapest run begins and ends with a hole: a block there would add its bytes and no free ones.
    const Run run = cheapest_run(stretches, need);
    if (!run.found()) return slid;
    Bytes to_B = std::max(spans_[ids[run.first]].offset_B, range.lo_B);
    bool done = true;
    for (std::size_t i = run.first; done && i <= run.last; ++i) {
      if (stretches[i].yield_B > 0) continue;  // a hole, or what has become of it
      const Bytes from_B = spans_[ids[i]].offset_B, reserved_B = spans_[ids[i]].reserved_B;
      done = slide(ids[i], to_B, relocate, slid) != NO_SPAN;
      if (!done) refused.push_back(from_B);
      to_B += reserved_B;
    }
    if (!done) continue;
    slid.hole_B = to_B;
    return slid;
  }
}

}  // namespace lowtide
