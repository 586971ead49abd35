// Program: what the retention kernel plans. Torch-free, solver-free, all in flat arrays.
//
// A program is a sequence of STAGES 0 .. n-1. Stage t first recomputes what its base recipe misses, then runs the
// base recipe itself, once. Every VALUE is an output of exactly one stage; values that the caller gives are
// outputs of a stage that takes no time, and values that are handed over are read by a stage without outputs.
//
// The USES of a value are the stages that read it, in order. They cut its life into GAPS: from production to the
// first use, between two uses, and from the last use to the end; a value with k uses has k + 1 gaps. Gap g of
// value v has the number first_gap(v) + g and covers the stages in (start, end].
//
// TAKEOVERS. A run of a stage may overwrite a value that it reads with its outputs, if it is the last to read it
// before it is dropped, and the value came in the same segment (what crosses a boundary may be wanted once more). Its
// bytes are free before the outputs come, and the run itself needs takeover_peak instead of trace_peak.
//
// PREFETCHES. A copy of some values may lie in another memory. Such a value may be prefetched from there instead of
// being recomputed: that reads nothing and needs no bytes but its own. `fetch_B` moves over the link each time,
// `send_B` once, before the first prefetch (0 where the value lives in the other memory anyway). What moves has a price
// per byte; plans for several prices come from one program, so prices can be changed at any time.
//
// Units: Bytes, Picos (1e-12 s), Index = position of a stage, a value or a gap.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "rows.hpp"

namespace lowtide {

constexpr Index KEEP = -1;
constexpr Index NEVER = std::numeric_limits<Index>::max();

// What becomes of a value in a gap is one number, its retention (see retention.hpp). The complement of one that brings
// the value back by recomputation is the one that brings it back at the same stages by prefetch.
constexpr bool is_by_fetch(Index retention) { return retention < KEEP; }
constexpr Index by_fetch(Index retention) { return ~retention; }  // and back

struct Program {
  // Given.
  Rows outputs;                       // stage -> values
  Rows reads;                         // stage -> values, without repetition, all produced earlier
  std::vector<Picos> run_time;        // stage -> time of its first run
  std::vector<Picos> recompute_time;      // stage -> time of a recomputation
  std::vector<Bytes> trace_peak;      // stage -> most bytes its run allocates by itself, outputs included
  std::vector<Bytes> recompute_peak;      // stage -> the same for a recomputation
  std::vector<Index> recompute_through;   // stage -> last stage that may recompute it; -1 for never
  std::vector<Index> part;            // stage -> a recomputation of one part happens only in stages of that part
  std::vector<Bytes> size;            // value -> bytes
  std::vector<Index> pinned_from;     // value -> gaps that start at this stage or later cannot be dropped; NEVER
  std::vector<Index> lost_from;       // value -> at the end of this stage the caller releases it; NEVER
  Rows takeovers;                     // stage -> those of its reads that a run may overwrite, the preferred first
  std::vector<Bytes> takeover_peak;   // stage -> most bytes such a run allocates; at most trace_peak and recompute_peak
  std::vector<Index> opened;          // stage -> the first stage of its segment
  std::vector<Bytes> fetch_B;         // value -> bytes that a prefetch moves; -1 if it cannot be prefetched
  std::vector<Bytes> send_B;          // value -> bytes that have to be offloaded before the first prefetch
  Bytes fixed = 0;                    // bytes that live throughout
  double send_price = 0;              // Picos per byte
  double fetch_price = 0;

  // Derived by index().
  std::vector<Index> producer;        // value -> stage
  Rows uses;                          // value -> stages, increasing
  std::vector<Index> gap_value;       // gap -> value
  std::vector<Index> gap_from;        // gap -> the stage after which it begins
  std::vector<Index> gap_through;     // gap -> the last stage that belongs to it
  bool fetches = false;               // whether any value can be prefetched

  Index stage_count() const { return outputs.size(); }
  Index value_count() const { return static_cast<Index>(size.size()); }
  Index gap_count() const { return static_cast<Index>(gap_value.size()); }
  Index first_gap(Index value) const { return uses.begin[static_cast<std::size_t>(value)] + value; }
  Index gap_start(Index gap) const { return gap_from[static_cast<std::size_t>(gap)]; }
  Index gap_end(Index gap) const { return gap_through[static_cast<std::size_t>(gap)]; }
  // The gap of `value` that covers `stage`; requires producer < stage.
  Index gap_at(Index value, Index stage) const;
  bool can_fetch(Index value) const { return fetches && fetch_B[static_cast<std::size_t>(value)] >= 0; }
  // Whether the value can be recomputed in this gap.
  bool can_recompute(Index gap) const;
  // Whether dropping in this gap can ever be legal and useful.
  bool is_free(Index gap) const;
  // Whether the value cannot be kept through this gap: the caller releases it where the gap begins.
  bool is_lost(Index gap) const;
  // What KEEP stands for there: at once, by prefetch where no recomputation can.
  Index lost_retention(Index gap) const;
  // What it costs to transfer so much.
  Picos price(Bytes sent, Bytes fetched) const {
    if ((sent | fetched) == 0) return 0;
    return std::llround(send_price * static_cast<double>(sent) + fetch_price * static_cast<double>(fetched));
  }
  // Whether a run of `stage` can take over `value`, one of its takeovers: no if it has to be kept, or cannot come so
  // late.
  bool may_take(Index stage, Index value) const;
  // The least bytes that the base run of `stage` allocates by itself in any schedule.
  Bytes least_peak(Index stage) const;

  // Fills the derived arrays. Requires the given ones; O(stages + reads).
  void index();
  // The comment at the top, as code: sizes agree, every value has one producer, reads point backwards.
  bool is_valid() const;
};

}  // namespace lowtide
