// StepRecord: what a step did, as a tape that can be replayed.
//
// A policy hears of calls and deaths as they happen; the record numbers what they name. Contents that the step found
// (parameters, inputs, what an earlier step left) are leaves, put first: in a rehearsal all of them are there from
// the start. What a call writes to them is left out, but not what the call reads, nor what has to be kept before it.
// Views have no bytes and are left out.
#pragma once
#include <cstdint>
#include <vector>

#include "ledger.hpp"
#include "capacity.hpp"
#include "tape.hpp"

namespace lowtide::eager {

class StepRecord {
 public:
  void ended(const Ledger& ledger, CallId call);
  void used(const Ledger& ledger, std::uint64_t name, Slice<ValueId> inputs, Nanoseconds cost_ns);
  // A root is about to become a leaf.
  void settled(const Ledger& ledger, ValueId root);
  // False: it is not in the record.
  bool died(const Ledger& ledger, ValueId root);
  bool is_empty() const { return events_.empty(); }
  struct Step {
    std::vector<std::int64_t> words;
    std::vector<Tape::Number> kept;  // alive when it ended
    Bytes leaves_B = 0;              // of what it found, allocated
  };
  // What was recorded, in words; and begins anew.
  Step take(const Ledger& ledger, const Capacity& capacity);

 private:
  // A content by the place where it was first met: leaves and made ones are numbered apart until the tape is written.
  struct Known {
    std::int64_t serial = -1;
    std::int32_t index = 0;
    bool is_leaf = false;
  };
  struct Place {
    std::int32_t index;
    bool is_leaf;
  };
  enum class Kind : std::uint8_t { ran, used, died, settled };
  struct Event {
    Kind kind;
    std::uint64_t name;
    Nanoseconds cost_ns;
    std::int32_t inputs, outputs, consumed, temps;  // how many; of what dies or settles, `first` is the place
    std::int32_t first, first_size, first_consumed, first_temp;
  };
  Place place_of(const Ledger& ledger, ValueId root);
  void learn(const Ledger& ledger, ValueId root, Place place);
  const Known* known(const Ledger& ledger, ValueId root) const;
  void add(Kind kind, const Known& of);

  std::vector<Known> known_;  // by ValueId
  std::vector<Bytes> leaves_B_;
  std::vector<ValueId> made_;  // who had been made, by index; asked at the end whether it is alive
  std::vector<std::int64_t> made_serial_;
  std::vector<Event> events_;
  std::vector<Place> places_;
  std::vector<Bytes> sizes_B_, temps_B_;
  std::vector<Consumed> consumed_;
};

}  // namespace lowtide::eager
