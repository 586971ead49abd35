#include "arena_spans.hpp"

#include <algorithm>

namespace lowtide {

namespace {

int bits(Bytes n) {  // how many binary digits a positive number has
  return 64 - __builtin_clzll(static_cast<unsigned long long>(n));
}

// The priority of the n-th span ever made: the same in every run, and without a pattern (the finaliser of MurmurHash3).
std::uint32_t scrambled(std::uint32_t n) {
  n = (n ^ (n >> 16)) * 0x85EBCA6BU;
  n = (n ^ (n >> 13)) * 0xC2B2AE35U;
  return n ^ (n >> 16);
}

}  // namespace

// Eight buckets to a power of two of alignment units; one for each of the first eight sizes.
std::size_t Spans::BySize::bucket(const Key& key, int shift) {
  const Bytes units = key.size_B >> shift;
  if (units < 8) return static_cast<std::size_t>(units);
  const int exponent = bits(units) - 1;
  return static_cast<std::size_t>((exponent - 2) * 8 + ((units >> (exponent - 3)) & 7));
}

Spans::Spans(Bytes capacity_B, Bytes alignment_B)
    : capacity_B_(capacity_B),
      alignment_B_(alignment_B),
      by_offset_(spans_, std::max(0, bits(capacity_B) - 10)),
      by_size_(spans_, bits(alignment_B) - 1) {
  by_size_.insert(insert_after(NO_SPAN, 0, capacity_B, HOLE));
  holes_ = 1;
}

Bytes Spans::largest_hole_B() const {
  const SpanId id = by_size_.last();
  return id == NO_SPAN ? 0 : (*this)[id].reserved_B;
}

SpanId Spans::block_at(Bytes offset_B) const {
  if (offset_B < 0 || offset_B >= capacity_B_) return NO_SPAN;
  const SpanId id = covering(offset_B);
  return (*this)[id].offset_B == offset_B && !(*this)[id].is_hole() ? id : NO_SPAN;
}

Usage Spans::usage(Bytes lo_B, Bytes hi_B) const {
  if (lo_B <= 0 && hi_B >= capacity_B_) return {in_use_B_, blocks_};
  Usage usage{0, 0};
  if (lo_B >= hi_B) return usage;
  for (SpanId id = covering(lo_B); id != NO_SPAN && (*this)[id].offset_B < hi_B; id = (*this)[id].next) {
    const Span& span = (*this)[id];
    if (span.is_hole()) continue;
    usage.in_use_B += std::min(span.end_B(), hi_B) - std::max(span.offset_B, lo_B);
    ++usage.blocks;
  }
  return usage;
}

Spans::Place Spans::best_fit(Bytes need_B, Bytes lo_B, Bytes hi_B, End end) const {
  const Request request{need_B, lo_B, hi_B, end};
  if (need_B > hi_B - lo_B) return {NO_SPAN, 0};
  if (lo_B > 0 || hi_B < capacity_B_) return best_fit_within(request);
  const SpanId lowest = by_size_.at_least({need_B, 0});
  if (lowest == NO_SPAN || end == End::low) return {lowest, lowest == NO_SPAN ? 0 : (*this)[lowest].offset_B};
  const SpanId highest = by_size_.at_most({(*this)[lowest].reserved_B, EVERYWHERE});
  return {highest, (*this)[highest].end_B() - need_B};
}

// Two searches take turns, and the first to end has the answer: one goes up the sizes of holes, past those outside the
// range, the other goes along the range. Only the spans at the range's ends can reach out of it.
Spans::Place Spans::best_fit_within(const Request& request) const {
  const SpanId start = covering(request.lo_B);
  Fit found{{NO_SPAN, 0}, EVERYWHERE};
  improve(found, start, request);
  improve(found, covering(request.hi_B - 1), request);
  Fit walked = found;
  SpanId next = (*this)[start].next;
  for (Bytes size_B = request.need_B; size_B <= found.size_B;) {
    const SpanId id = by_size_.at_least({size_B, request.lo_B});
    if (id == NO_SPAN) break;
    const Span& hole = (*this)[id];
    size_B = hole.reserved_B;
    if (hole.offset_B >= request.lo_B) {  // the lowest of its size in the range, or past it
      if (hole.end_B() <= request.hi_B) {
        improve(found, request.end == End::low ? id : by_size_.at_most({size_B, request.hi_B - size_B}), request);
        break;
      }
      ++size_B;
    }
    for (int steps = 0; steps < 8; ++steps) {  // about the time of a look-up
      if (next == NO_SPAN || (*this)[next].offset_B >= request.hi_B) return walked.place;
      improve(walked, next, request);
      next = (*this)[next].next;
    }
  }
  return found.place;
}

// Takes a hole, clipped to the range, instead of `best` where it fits better.
void Spans::improve(Fit& best, SpanId id, const Request& request) const {
  const Span& span = (*this)[id];
  if (!span.is_hole()) return;
  const Bytes lo_B = std::max(span.offset_B, request.lo_B), hi_B = std::min(span.end_B(), request.hi_B);
  const Bytes size_B = hi_B - lo_B, offset_B = request.end == End::low ? lo_B : hi_B - request.need_B;
  if (size_B < request.need_B || size_B > best.size_B) return;
  const bool nearer = request.end == End::low ? offset_B < best.place.offset_B : offset_B > best.place.offset_B;
  if (size_B < best.size_B || nearer) best = {{id, offset_B}, size_B};
}

SpanId Spans::take(SpanId hole, Bytes offset_B, Bytes reserved_B, Bytes requested_B, std::uint64_t tag, End end) {
  if (spans_.capacity() - spans_.size() < 2) spans_.reserve(2 * spans_.size() + 64);  // before anything changes
  by_size_.erase(hole);
  --holes_;
  const Bytes start_B = at(hole).offset_B, end_B = at(hole).end_B();
  SpanId block = hole;
  if (offset_B > start_B) {
    at(hole).reserved_B = offset_B - start_B;
    by_size_.insert(hole);
    ++holes_;
    block = insert_after(hole, offset_B, reserved_B, requested_B);
  }
  if (offset_B + reserved_B < end_B) {
    by_size_.insert(insert_after(block, offset_B + reserved_B, end_B - offset_B - reserved_B, HOLE));
    ++holes_;
  }
  at(block).reserved_B = reserved_B;
  at(block).requested_B = requested_B;
  at(block).tag = tag;
  at(block).end = end;
  in_use_B_ += reserved_B;
  requested_B_ += requested_B;
  ++blocks_;
  return block;
}

void Spans::release(SpanId block) {
  in_use_B_ -= at(block).reserved_B;
  requested_B_ -= at(block).requested_B;
  --blocks_;
  ++holes_;
  at(block).requested_B = HOLE;
  const SpanId next = at(block).next, previous = at(block).previous;
  if (next != NO_SPAN && at(next).is_hole()) {
    by_size_.erase(next);
    at(block).reserved_B += at(next).reserved_B;
    remove(next);
    --holes_;
  }
  if (previous != NO_SPAN && at(previous).is_hole()) {
    by_size_.erase(previous);
    at(previous).reserved_B += at(block).reserved_B;
    remove(block);
    --holes_;
    block = previous;
  }
  by_size_.insert(block);
}

SpanId Spans::insert_after(SpanId previous, Bytes offset_B, Bytes reserved_B, Bytes requested_B) {
  SpanId id = unused_;
  if (id != NO_SPAN) {
    unused_ = at(id).next;
  } else {
    id = static_cast<SpanId>(spans_.size());
    spans_.emplace_back();
    at(id).priority = scrambled(static_cast<std::uint32_t>(id));
  }
  Span& span = at(id);
  span.offset_B = offset_B;
  span.reserved_B = reserved_B;
  span.requested_B = requested_B;
  span.previous = previous;
  span.next = NO_SPAN;
  if (previous != NO_SPAN) {
    span.next = at(previous).next;
    at(previous).next = id;
  }
  if (span.next != NO_SPAN) at(span.next).previous = id;
  by_offset_.insert(id);
  return id;
}

void Spans::remove(SpanId id) {
  by_offset_.erase(id);
  const SpanId previous = at(id).previous, next = at(id).next;
  if (previous != NO_SPAN) at(previous).next = next;
  if (next != NO_SPAN) at(next).previous = previous;
  at(id).next = unused_;
  unused_ = id;
}

std::string Spans::check() const {
  std::vector<SpanId> addressed, sized, holes;
  if (!by_offset_.is_valid(addressed)) return "the order by offset is broken";
  if (!by_size_.is_valid(sized)) return "the order of holes is broken";
  Bytes end_B = 0, in_use_B = 0, requested_B = 0;
  std::int64_t blocks = 0;
  SpanId before = NO_SPAN;
  for (const SpanId id : addressed) {
    const Span& span = (*this)[id];
    if (span.previous != before || (before != NO_SPAN && (*this)[before].next != id))
      return "the list of spans is not in the order of their offsets";
    if (span.offset_B != end_B || span.reserved_B <= 0) return "the spans do not tile the capacity";
    if (span.offset_B % alignment_B_ != 0 || span.reserved_B % alignment_B_ != 0) return "a span is not aligned";
    if (span.is_hole()) {
      if (before != NO_SPAN && (*this)[before].is_hole()) return "two neighbouring holes are not one";
      holes.push_back(id);
    } else {
      if (span.requested_B < 0 || span.requested_B > span.reserved_B) return "a block holds less than was requested";
      in_use_B += span.reserved_B;
      requested_B += span.requested_B;
      ++blocks;
    }
    end_B = span.end_B();
    before = id;
  }
  if (end_B != capacity_B_ || (*this)[before].next != NO_SPAN) return "the spans do not tile the capacity";
  std::sort(holes.begin(), holes.end(), [this](SpanId a, SpanId b) {
    return BySize::key((*this)[a]) < BySize::key((*this)[b]);
  });
  if (holes != sized) return "the order of holes does not hold exactly the holes";
  if (in_use_B != in_use_B_ || requested_B != requested_B_) return "the bytes in use are not those of the blocks";
  if (blocks != blocks_ || static_cast<std::int64_t>(holes.size()) != holes_)
    return "the counts are not those of the blocks and holes";
  return {};
}

}  // namespace lowtide
