// Tape: what an eager program did, with its names resolved; what a replay runs. src/lowtide/ir/tape.py
// reads traces as such.
//
// Contents are numbered from 1 in the order in which they come: a leaf is one, a call makes one per output. A content
// may be a view of an earlier one. A content dies when nothing names it, or a view of it, any more.
//
// As numbers, one event after the other:
//   LEAF size_B
//   RAN name cost_ns, how many inputs, outputs, views, consumed and temps, then per input its number; per output its
//       size_B; per view (output, number); per consumed (input, output); per temp its size_B
//   DIED number
//   USED name cost_ns, how many inputs, then the number of each: a call that made nothing that can be recomputed
//   SETTLED number: it became a leaf, since what it was made of was about to change
// INVARIANT (Tape::Tape checks it, and throws std::invalid_argument): numbers name contents that came before and
// neither died nor were written over; indices lie in their lists; no size or cost is negative; what dies, is consumed,
// or consumes is no view.
#pragma once
#include <cstdint>
#include <vector>

#include "ids.hpp"
#include "ledger.hpp"

namespace lowtide::eager {

class Tape {
 public:
  enum Kind : std::int64_t { LEAF = 0, RAN = 1, DIED = 2, USED = 3, SETTLED = 4 };
  using Number = std::int64_t;

  struct View {
    Index output;
    Number number;
  };
  struct Event {
    Kind kind;
    std::int64_t number_or_size;  // LEAF: size_B; DIED, SETTLED: number
    std::uint64_t name;
    Nanoseconds cost_ns;
    Slice<Number> inputs;
    Slice<Bytes> sizes_B;
    Slice<View> views;
    Slice<Consumed> consumed;
    Slice<Bytes> temps_B;
  };

  // `kept`: the contents that are asked for at the end, in that order.
  Tape(std::vector<std::int64_t> words, std::vector<Number> kept);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const std::vector<Event>& events() const { return events_; }
  const std::vector<Number>& kept() const { return kept_; }
  Number contents() const { return contents_; }
  Nanoseconds time_ns() const { return time_ns_; }

 private:
  struct Contents;
  template <class Words>
  void read_call(Words& reader, Event& event, Contents& contents);

  std::vector<std::int64_t> words_;
  std::vector<Number> kept_;
  std::vector<Event> events_;
  std::vector<View> views_;
  std::vector<Consumed> consumed_;
  Number contents_ = 0;
  Nanoseconds time_ns_ = 0;
};

}  // namespace lowtide::eager
