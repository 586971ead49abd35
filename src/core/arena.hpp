// Arena: who has which bytes of an address range [0, capacity).
//
// It owns no memory: offsets are numbers, and where offset 0 lies is the caller's business. The same code therefore
// serves tensors on a CPU, blocks on a GPU and a planner's simulation. The C++17 standard library is all it needs:
// compile arena*.cpp, include arena.hpp.
//
// SERVING. allocate() is best fit, exactly: of the holes that are large enough the smallest, of equal ones the lowest
// or, for End::high, the highest; the block is carved from that end of the hole. Long-lived or tiny blocks that would
// fence the range are carved from the high end. allocate_at() serves a planned offset, or refuses. A size is rounded up
// to the alignment; the size asked for is remembered and reported. A block of no bytes takes one alignment unit, so
// that no two blocks share an offset. Offsets and bounds are clipped to whole alignment units inwards.
//
// FAILURES. Nothing is served past the capacity; a failure is counted as one of capacity (too few free bytes) or one
// of contiguity (enough, in pieces). Then the caller may evict what cheapest_window() names, or let slide_for() or
// compact() slide blocks together: best fit after compact() of movable blocks fails only for want of capacity.
//
// HIGH WATER. low_high_B is the highest end of any block from the low side, top_depth_B how far blocks from the high
// side have reached down from the capacity: their sum is the address range ever used, the bytes to reserve.
//
// INVARIANT. check() names the first thing that is broken, or nothing: see arena_spans.hpp; and no peak is below what
// it is the peak of. Compiled with LOWTIDE_CHECK, every change is followed by check(), and a break aborts.
//
// THREADS. Every member may be called from any thread: one mutex guards all. The callbacks of compact(), slide_for(),
// cheapest_window(), visit_blocks() and visit_holes() run under that mutex, must not call the arena, and must not wait for a thread
// that does. lock() and unlock() are for pthread_atfork alone, so that a child never inherits a mutex held by a thread
// that it does not have.
//
// ERRORS. A caller's mistake (a negative size, an unaligned offset, a cost that is no cost) throws
// std::invalid_argument and changes nothing. Want of capacity is an answer, not an error.
#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "arena_spans.hpp"
#include "bytes.hpp"

namespace lowtide {

// Where to evict. A block that reaches past the range asked for may be among the evicted.
struct Window {
  Bytes lo_B = -1, hi_B = -1;  // the hole that there is once `evicted` are freed, within the range; -1: no window
  double cost = 0;
  Bytes evicted_B = 0;  // their reserved bytes
  std::vector<Block> evicted;
  bool found() const { return lo_B >= 0; }
};

// What sliding did.
struct Slide {
  Bytes moved_B = 0;  // requested bytes of the blocks moved
  std::int64_t moves = 0;
  Bytes hole_B = -1;  // slide_for: offset of the hole that suffices, or -1
};

struct ArenaStatistics {
  Bytes capacity_B, alignment_B;
  Bytes in_use_B, requested_B;             // reserved by blocks; asked for by them
  Bytes peak_in_use_B, peak_requested_B;   // the most of each
  Bytes low_high_B, top_depth_B;           // reach of each side
  Bytes high_water_B;                      // both together, at most the capacity
  Bytes largest_hole_B;
  std::int64_t blocks, holes;
  std::int64_t allocations, frees, moves;
  Bytes moved_B;
  std::int64_t failures_for_capacity;        // the free bytes did not suffice
  std::int64_t failures_for_contiguity;  // they did, in pieces
  std::int64_t refusals;                 // allocate_at: some byte was taken
};

class Arena {
 public:
  using Cost = std::function<double(const Block&)>;
  using Movable = std::function<bool(const Block&)>;
  // Moves size_B bytes as memmove would (the ranges may overlap); false: it will not, and the block is left in place.
  using Relocate = std::function<bool(Bytes from_B, Bytes to_B, Bytes size_B)>;
  using VisitHole = std::function<void(Bytes lo_B, Bytes hi_B)>;
  static constexpr Bytes NOWHERE = -1;

  // alignment_B: a power of two. capacity_B: at least one alignment unit, rounded down to whole ones.
  Arena(Bytes capacity_B, Bytes alignment_B);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The block's offset, or NOWHERE.
  [[nodiscard]] Bytes allocate(Bytes size_B, std::uint64_t tag = 0) {
    return allocate(size_B, 0, capacity_B(), End::low, tag);
  }
  // The same within [lo_B, hi_B), clipped to the capacity, from one end.
  [[nodiscard]] Bytes allocate(Bytes size_B, Bytes lo_B, Bytes hi_B, End end, std::uint64_t tag = 0);
  // Serves exactly offset_B, for the account of the side `end`; false: some byte is taken or outside.
  [[nodiscard]] bool allocate_at(Bytes offset_B, Bytes size_B, std::uint64_t tag = 0, End end = End::low);
  // The size that was asked for, or NOWHERE when no block begins at offset_B (nothing is changed then).
  Bytes free(Bytes offset_B) {
    std::uint64_t tag = 0;
    return free(offset_B, tag);
  }
  // The same, and the tag that the block has; a block whose tag has a bit of `kept` is not freed, and that is NOWHERE
  // too.
  Bytes free(Bytes offset_B, std::uint64_t& tag, std::uint64_t kept = 0);

  Bytes capacity_B() const { return spans_.capacity_B(); }
  Bytes alignment_B() const { return spans_.alignment_B(); }
  // The size asked for, or NOWHERE when no block begins there.
  Bytes size_of(Bytes offset_B) const;
  bool contains(Bytes offset_B) const { return size_of(offset_B) != NOWHERE; }
  // The block that holds this byte; false, and `block` unchanged, when none does.
  bool find(Bytes byte_B, Block& block) const;
  bool set_tag(Bytes offset_B, std::uint64_t tag);
  // Every block, by address; those of a range are those that share a byte with it.
  std::vector<Block> blocks() const { return blocks(0, capacity_B()); }
  std::vector<Block> blocks(Bytes lo_B, Bytes hi_B) const;
  template <class Visit>
  void visit_blocks(Bytes lo_B, Bytes hi_B, const Visit& visit) const {
    const Guard guard(mutex_);
    const Range range = clipped(lo_B, hi_B);
    if (range.lo_B == range.hi_B) return;
    for (SpanId id = spans_.covering(range.lo_B); id != NO_SPAN && spans_[id].offset_B < range.hi_B; id = spans_[id].next)
      if (!spans_[id].is_hole()) visit(spans_.block(id));
  }
  // Bytes and blocks in use within a range; one look-up when it is empty, or all there is.
  Usage in_use_within(Bytes lo_B, Bytes hi_B) const;
  void visit_holes(const VisitHole& visit) const;

  // The window in [lo_B, hi_B) of at least need_B whose blocks cost least in sum (an infinite cost: pinned; holes cost
  // nothing); of equals the one with fewer evicted bytes, then the lower. O(spans), one call of `cost` per block.
  Window cheapest_window(Bytes need_B, Bytes lo_B, Bytes hi_B, const Cost& cost) const;

  // Slides movable blocks that lie whole in [lo_B, hi_B) down, in address order, never past a block that is not
  // movable.
  Slide compact(Bytes lo_B, Bytes hi_B, const Movable& movable, const Relocate& relocate);
  // Makes one hole of need_B with the fewest moved bytes that sliding can do: it chooses the run of holes whose blocks
  // between weigh least and slides these down. It succeeds whenever compact() would make such a hole, and moves
  // nothing when there is one, or when no sliding makes one.
  Slide slide_for(Bytes need_B, Bytes lo_B, Bytes hi_B, const Movable& movable, const Relocate& relocate);

  ArenaStatistics statistics() const;
  // Peaks and reaches restart from the blocks in use; the counts go on.
  void reset_peaks();
  std::string check() const;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  using Guard = std::lock_guard<std::mutex>;
  struct Range {
    Bytes lo_B, hi_B;
  };

  // All of these expect the mutex to be held.
  Range clipped(Bytes lo_B, Bytes hi_B) const;
  Range aligned(Bytes lo_B, Bytes hi_B) const;
  Bytes reserved_for(Bytes size_B) const;
  void serve(const Spans::Place& place, Bytes size_B, std::uint64_t tag, End end);
  void note_failure(Bytes need_B, Range range);
  void note_reach(SpanId block);
  bool lies_within(SpanId id, Range range) const;
  SpanId slide(SpanId block, Bytes to_B, const Relocate& relocate, Slide& slid);
  std::string broken() const;
  void verify() const;

  mutable std::mutex mutex_;
  Spans spans_;
  Bytes peak_in_use_B_ = 0, peak_requested_B_ = 0, low_high_B_ = 0, top_depth_B_ = 0, moved_B_ = 0;
  std::int64_t allocations_ = 0, frees_ = 0, moves_ = 0;
  std::int64_t failures_for_capacity_ = 0, failures_for_contiguity_ = 0, refusals_ = 0;
};

}  // namespace lowtide
