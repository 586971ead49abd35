// Replay: a policy, run on a tape inside a budget. tests/oracle/replay.py does the same.
#pragma once
#include <string>

#include "eviction_manager.hpp"
#include "tape.hpp"

namespace lowtide::eager {

// What a tape does not say.
struct Rules {
  bool addresses = true;  // bytes in a row of addresses, or only their sum
  bool forgets = true;    // what nothing can need again leaves the ledger
  Bytes alignment_B = 64;  // of addresses
  Bytes small_B = 10240;   // blocks up to this size lie apart: see Addresses
  double limit = 2.0;     // stops where calls and recomputations cost more than this many times the calls; 0: never
};

struct ReplayResult {
  enum class End : std::uint8_t { finished, out_of_capacity, too_slow };
  static constexpr std::int64_t AT_THE_END = -1;
  End end = End::finished;
  std::int64_t event = AT_THE_END;  // where it ended: AT_THE_END while what is kept was asked for
  Bytes capacity_B = 0;
  Bytes need_B = 0, in_use_B = 0, pinned_B = 0;  // out_of_capacity: asked for; taken then; of that in use by what was running
  Bytes peak_B = 0;
  std::int64_t weighed = 0;
  EvictionStatistics statistics;
};

// Runs the tape; contents that are named at its end are resident and pinned then. O(calls x what the policy looks at).
ReplayResult replay(const Tape& tape, Policy& policy, Bytes budget_B, const Rules& rules);

}  // namespace lowtide::eager
