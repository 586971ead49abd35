// Foresight: what a step that was recorded says of the next one, if that is like it.
//
// Stage 0 has the leaves, stage t the t-th call of the tape, the last one asks for what is kept. What becomes a leaf is
// used by the stage after that, and is kept from then on. For every content: the stages
// that use it, and, for every gap between two uses, what to do with its bytes there: a retention (see retention.hpp)
// that the greedy planner finds for a budget. A value is SPARE at a stage where that retention has dropped it; one that
// is never used again is spare as well. The rest is kept, the longer until its next use the less readily.
// A candidate is one setting of these; a rehearsal (see rehearsal.hpp) says which is best.
#pragma once
#include <vector>

#include "program.hpp"
#include "tape.hpp"

namespace lowtide::eager {

struct Candidate {
  bool plans = false;      // by a retention for `share` of the budget; else by distances alone
  double share = 1;
  bool is_linear = false;  // minds by distance; else by its root
};

class Foresight {
 public:
  explicit Foresight(const Tape& tape);

  // Finds the retention for a budget; `steps`: at most so many commits of the greedy planner. Returns what that tried.
  std::int64_t plan(Bytes budget_B, Index steps);

  Index stages() const { return program_.stage_count(); }
  // Of a content that was last touched in stage `last`, in stage `now`: whether the retention has dropped it.
  bool is_spare(Tape::Number number, Index last, Index now) const;
  // Nanoseconds of calls until its next use, from stage `now`; NEVER_USED: there is none; STAYS: from then on it is
  // kept, so that what it was made of may go, and may be gone by then.
  static constexpr Nanoseconds NEVER_USED = -1, STAYS = -2;
  Nanoseconds distance_ns(Tape::Number number, Index last, Index now) const;
  // From a stage to the end.
  Nanoseconds remaining_ns(Index now) const { return start_ns_.back() - start_ns_[static_cast<std::size_t>(now)]; }
  // The first stage at `next` or shortly after it whose call is like this one (see Signature); 0: there is none.
  Index find(std::uint64_t signature, Index next) const;
  Tape::Number first_output(Index stage) const { return first_output_[static_cast<std::size_t>(stage)]; }
  Index outputs(Index stage) const { return program_.outputs[stage].size(); }
  // Of all of it: equal steps have equal ones.
  std::uint64_t digest() const { return digest_; }

 private:
  Program program_;
  std::vector<Index> taus_;
  std::vector<Nanoseconds> start_ns_;  // stage -> clock
  std::vector<std::uint64_t> signatures_;
  std::vector<Tape::Number> first_output_;
  std::uint64_t digest_ = 0;
};

// Of a call: its name and the sizes of what it reads; like calls have equal ones.
class Signature {
 public:
  explicit Signature(std::uint64_t name) { add(name); }
  void add_size(Bytes size_B) { add(static_cast<std::uint64_t>(size_B)); }
  void add(std::uint64_t number) { hash_ = (hash_ ^ number) * 0x100000001b3u; }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace lowtide::eager
