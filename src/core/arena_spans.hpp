// Spans: an address range [0, capacity) cut into blocks (in use) and holes (free). The arena's memory of itself.
//
// INVARIANT (check says which part is broken, or nothing):
//   the spans, linked in address order, tile [0, capacity) without gap or overlap;
//   every span begins and ends at a multiple of the alignment, and is not empty;
//   no two neighbouring spans are both holes;
//   a block's requested bytes lie in 0 .. its reserved bytes;
//   one order holds exactly the spans, by offset; another exactly the holes, by size and then offset;
//   the totals equal sums over the spans.
// Nothing here locks, counts events or knows why: that is the arena's (arena.hpp). An operation costs a few steps in
// each order, independently of how many spans there are when they are spread, their logarithm when they are not.
// Spans live in one growing table, and a freed one is used again: steady work asks the system for no memory.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "arena_order.hpp"
#include "bytes.hpp"

namespace lowtide {

// The end of a range from which a block is carved.
enum class End : std::uint8_t { low, high };

struct Block {
  Bytes offset_B;     // where it begins
  Bytes requested_B;  // what was asked for
  Bytes reserved_B;   // what it takes: requested, rounded up to the alignment
  std::uint64_t tag;  // the caller's: who asked
};

// Blocks that share a byte with a range, and how many of its bytes they reserve.
struct Usage {
  Bytes in_use_B;
  std::int64_t blocks;
};

class Spans {
 public:
  static constexpr Bytes HOLE = -1;  // requested_B of a hole

  // One cache line.
  struct Span {
    Bytes offset_B, reserved_B, requested_B;
    std::uint64_t tag;
    SpanId previous, next;                // in address order
    SpanId address_left, address_right;   // links of the order by offset
    SpanId size_left, size_right;         // links of the order of holes
    std::uint32_t priority;
    End end;  // the end that a block was carved from
    bool is_hole() const { return requested_B == HOLE; }
    Bytes end_B() const { return offset_B + reserved_B; }
  };

  // A place in a hole; hole is NO_SPAN where there is none.
  struct Place {
    SpanId hole;
    Bytes offset_B;
  };

  // alignment_B is a power of two; capacity_B a positive multiple of it.
  Spans(Bytes capacity_B, Bytes alignment_B);
  Spans(const Spans&) = delete;
  Spans& operator=(const Spans&) = delete;

  const Span& operator[](SpanId id) const { return spans_[static_cast<std::size_t>(id)]; }
  Block block(SpanId id) const {
    const Span& span = (*this)[id];
    return {span.offset_B, span.requested_B, span.reserved_B, span.tag};
  }
  void set_tag(SpanId id, std::uint64_t tag) { at(id).tag = tag; }
  void set_end(SpanId id, End end) { at(id).end = end; }

  Bytes capacity_B() const { return capacity_B_; }
  Bytes alignment_B() const { return alignment_B_; }
  Bytes round_up(Bytes size_B) const { return (size_B + alignment_B_ - 1) & -alignment_B_; }
  Bytes round_down(Bytes size_B) const { return size_B & -alignment_B_; }

  Bytes in_use_B() const { return in_use_B_; }        // reserved by blocks
  Bytes requested_B() const { return requested_B_; }  // requested by blocks
  std::int64_t blocks() const { return blocks_; }
  std::int64_t holes() const { return holes_; }
  Bytes largest_hole_B() const;

  // The span that holds the byte at offset_B, which lies in [0, capacity).
  SpanId covering(Bytes offset_B) const { return by_offset_.at_most(offset_B); }
  // The block that begins at offset_B, or NO_SPAN.
  SpanId block_at(Bytes offset_B) const;
  // What lies in [lo_B, hi_B), within the capacity.
  Usage usage(Bytes lo_B, Bytes hi_B) const;

  // Best fit: the smallest of the holes, clipped to [lo_B, hi_B), that holds need_B; of equals the lowest (End::low)
  // or the highest. All three are multiples of the alignment, the range lies within the capacity. Over the whole
  // capacity one look-up; over a part of it as many steps as there are spans in that part, or as there are sizes of
  // holes between need_B and the size that fits, whichever are fewer.
  Place best_fit(Bytes need_B, Bytes lo_B, Bytes hi_B, End end) const;

  // Makes [offset_B, offset_B + reserved_B) of a hole, which contains it, a block.
  SpanId take(SpanId hole, Bytes offset_B, Bytes reserved_B, Bytes requested_B, std::uint64_t tag, End end);
  // Makes a block a hole, one with the adjacent holes.
  void release(SpanId block);

  std::string check() const;

 private:
  struct ByOffset {
    using Key = Bytes;
    static constexpr std::size_t BUCKETS = 1024;
    static Key key(const Span& span) { return span.offset_B; }
    static SpanId& left(Span& span) { return span.address_left; }
    static SpanId& right(Span& span) { return span.address_right; }
    static std::size_t bucket(Key offset_B, int shift) { return static_cast<std::size_t>(offset_B >> shift); }
  };
  struct BySize {
    struct Key {
      Bytes size_B, offset_B;
      bool operator<(const Key& o) const { return size_B != o.size_B ? size_B < o.size_B : offset_B < o.offset_B; }
    };
    static constexpr std::size_t BUCKETS = 512;
    static Key key(const Span& span) { return {span.reserved_B, span.offset_B}; }
    static SpanId& left(Span& span) { return span.size_left; }
    static SpanId& right(Span& span) { return span.size_right; }
    static std::size_t bucket(const Key& key, int shift);
  };
  static constexpr Bytes EVERYWHERE = std::numeric_limits<Bytes>::max();

  Span& at(SpanId id) { return spans_[static_cast<std::size_t>(id)]; }
  struct Request {
    Bytes need_B, lo_B, hi_B;
    End end;
  };
  struct Fit {
    Place place;
    Bytes size_B;  // of the hole, clipped
  };
  Place best_fit_within(const Request& request) const;
  void improve(Fit& best, SpanId id, const Request& request) const;
  // A new span after another in address order, in the order by offset.
  SpanId insert_after(SpanId previous, Bytes offset_B, Bytes reserved_B, Bytes requested_B);
  void remove(SpanId id);

  Bytes capacity_B_, alignment_B_;
  Bytes in_use_B_ = 0, requested_B_ = 0;
  std::int64_t blocks_ = 0, holes_ = 0;
  std::vector<Span> spans_;
  SpanId unused_ = NO_SPAN;  // spans to use again, linked by `next`
  SpanOrder<Span, ByOffset> by_offset_;
  SpanOrder<Span, BySize> by_size_;
};

}  // namespace lowtide
