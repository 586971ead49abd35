// Retention: which values are kept, which are dropped and rematerialised, and what that costs, exactly.
//
// DECISION. One integer per gap, its retention r (see program.hpp). Value v is AVAILABLE at stage t of a gap iff
//     last(v, t) >= r,    last = the last stage before t that produced, recomputed or used v.
//   KEEP (-1)       always available: it is not dropped
//   gap start + 1   dropped at once; kept again from its first recomputation on
//   s               recomputed for each need before stage s; kept from the first recomputation at or after s
//   NEVER           recomputed for each need and dropped again
//   by_fetch(any)   the same, but prefetched, never recomputed: what a recomputation makes of it is dropped at once
// Where the caller releases the value (Program::is_lost), KEEP stands for gap start + 1.
// A retention other than KEEP is greater than the start of its gap, and only a free gap (Program::is_free) has one;
// only a value that can be prefetched has one by prefetch.
//
// MEANING. Stage t recomputes closure(t): the producers of what is read and not available, and of what those read,
// in depth-first post-order, each once; then its base recipe runs. What is prefetched comes right before the first run
// that reads it. In the list of recomputations, a prefetch of value v is the ITEM stage_count + v. A value is resident
// over SPANS [start, end]: from the run or prefetch that brings it (in stage `start`) to its last use (in stage `end`)
// before it is dropped. A run of stage r needs what is live plus trace_peak[r] (a recomputation: recompute_peak[r]);
// afterwards its outputs that begin a span are live. An output that begins no span dies with its run. A run that can
// take over a value (see program.hpp) does so: it is the value's last reader in the stage with which its span ends, and
// no later prefetch needs the copy elsewhere. `live(t)` is the most bytes at once during stage t: a prefetched value is
// there from its prefetch on, one that was offloaded until its last use. When copies are on their way is not known
// here.
//
// INVARIANT (is_valid): recomputations, spans, live bytes and time equal what a fresh Retention with the same numbers
// has.
//
// CHANGES. apply() changes some gaps and updates only what depends on them: stages whose closure may differ are
// taken in increasing order from a heap; then the spans of touched values are rebuilt, and touched stages are
// simulated again. It returns false, and changes nothing, when a closure needs what cannot be recomputed there, or
// grows past `closure_cap` (a closure is never cut short). Each apply() is settled by commit() or undo().
// Not thread-safe: one search owns it.
#pragma once
#include <cstdint>
#include <queue>
#include <vector>

#include "levels.hpp"
#include "program.hpp"

namespace lowtide {

struct Change {
  Index gap;
  Index retention;
};

struct Span {
  Index start;  // stage of the run that brings the value
  Index end;    // stage of its last use
  bool operator==(const Span& o) const { return start == o.start && end == o.end; }
};

class Retention {
 public:
  // Everything kept. `program` must outlive it. closure_cap: most recomputations in one stage.
  Retention(const Program& program, Bytes budget, Index closure_cap = 2000);

  const Program& program() const { return *program_; }
  // False when even keeping everything cannot be carried out: a value is needed that was released for good.
  bool is_possible() const { return possible_; }
  Bytes budget() const { return budget_; }
  void set_budget(Bytes budget);

  [[nodiscard]] bool apply(const std::vector<Change>& changes);
  void commit() { journal_.clear(); }
  void undo();
  // All taus at once (one per gap); false, and nothing changed, if that is impossible.
  [[nodiscard]] bool assign(const std::vector<Index>& taus);

  const std::vector<Index>& taus() const { return retention_; }
  Index retention(Index gap) const { return retention_[at(gap)]; }
  const std::vector<Index>& recomputations(Index stage) const { return rec_[at(stage)]; }       // items, in order
  const std::vector<Index>& recompute_at(Index item) const { return recompute_at_[at(item)]; }  // stages, sorted
  const std::vector<Span>& spans(Index value) const { return spans_[at(value)]; }
  // The span of `value` that contains `stage`, or nullptr.
  const Span* span_at(Index value, Index stage) const;
  bool available(Index value, Index stage) const;

  Picos time() const { return cost_.compute + program_->price(cost_.sent, cost_.fetched); }
  Picos compute() const { return cost_.compute; }
  Bytes sent() const { return cost_.sent; }
  Bytes fetched() const { return cost_.fetched; }
  Bytes live(Index stage) const { return live_[stage]; }
  Bytes peak() const { return live_.count() == 0 ? program_->fixed : live_.top(); }
  Index peak_stage() const { return live_.top_stage(); }
  Bytes excess() const { return live_.excess(); }  // sum over stages of max(0, live - budget)
  bool fits() const { return excess() == 0; }
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  struct Cost {
    Picos compute = 0;
    Bytes sent = 0, fetched = 0;
    bool operator==(const Cost& o) const { return compute == o.compute && sent == o.sent && fetched == o.fetched; }
  };

  // What undo() puts back. Vectors are swapped, not copied.
  struct Journal {
    std::vector<Change> taus;
    std::vector<std::pair<Index, std::vector<Index>>> recomputations;
    std::vector<std::pair<Index, std::vector<Span>>> spans;
    std::vector<std::pair<Index, Bytes>> local;
    Cost cost;
    void clear();
  };

  bool change(const std::vector<Change>& changes);
  bool closure(Index stage, std::vector<Index>& order);
  bool enter(Index recipe, Index stage, std::size_t size);
  void fetch_missing(Index recipe, Index stage, std::vector<Index>& order);
  void refetched(Index value, Index stage);
  void replace_recomputations(Index stage, std::vector<Index>& order);
  void note_recompute(Index item, Index stage, bool added);
  void note_fetch(Index value, bool added, bool only);
  // Whether what recomputations make of the value at `stage`, after it was produced, is dropped at once.
  bool is_fetched(Index value, Index stage) const {
    return program_->can_fetch(value) && is_by_fetch(retention_[at(program_->gap_at(value, stage))]);
  }
  const std::vector<Index>& arrivals(Index value);
  void ask_again(Index value, Index gap, Index after);
  void push_stage(Index stage);
  void touch_value(Index value);
  void touch_stage(Index stage);
  void build_spans(Index value, std::vector<Span>& spans);
  void set_spans(Index value, std::vector<Span>& spans);
  void occupy(Index first, Index last, Bytes size);
  void occupy_beyond(const std::vector<Span>& spans, const std::vector<Span>& others, Bytes size);
  Index taken(Index recipe, Index stage, Index run) const;
  Bytes simulate(Index stage);
  void set_local(Index stage, Bytes local);

  const Program* program_;
  Bytes budget_;
  std::size_t closure_cap_;
  std::size_t work_cap_;  // most recomputations met in one apply()
  std::vector<Index> retention_;
  std::vector<std::vector<Index>> rec_;
  std::vector<std::vector<Index>> recompute_at_;  // item -> the stages before which it comes
  std::vector<std::vector<Span>> spans_;
  Levels live_;
  std::vector<Bytes> local_;
  bool possible_ = true;
  Cost cost_;

  // Scratch of apply().
  Journal journal_;
  std::priority_queue<Index, std::vector<Index>, std::greater<Index>> dirty_;
  std::vector<char> is_dirty_, value_touched_, stage_touched_;
  std::vector<Index> touched_values_, touched_stages_;
  std::vector<std::uint32_t> seen_;  // item -> number of the closure that contains it
  std::uint32_t closure_number_ = 0;
  std::size_t work_ = 0;  // recomputations met in this apply()
  struct Frame {
    Index recipe, next;
  };
  std::vector<Frame> stack_;
  std::vector<Index> order_, events_, arrivals_, last_read_;
  std::vector<Span> fresh_spans_;
};

}  // namespace lowtide
