// Pass: one operator of the program in the runtime (passage.cpp, attempt.cpp).
#pragma once
#include "runtime.hpp"

namespace lowtide::shim {

struct Runtime::Pass {
  Pass(const Operator& of, c10::DispatchKeySet below) : op(of), keys(below) {}

  const Operator& op;
  c10::DispatchKeySet keys;
  Values inputs;           // each once, in order of first occurrence
  Values written;          // of them
  Values read;             // of them, what its recomputation would read
  bool records = true;     // it can be recomputed
  bool is_recorded = false;
  bool is_spared = false;  // what it writes behind its schema's back is left out of recomputations
  bool parameter = false;  // it writes one
  std::optional<std::uint64_t> closure;
  std::optional<Draw> draw;
  Likeness like;
  Extents extents;    // of its arguments, if a diary is kept
  Diary::Made kept;   // what it made that is never recomputed
  std::vector<std::pair<ValueId, std::uint64_t>> untouched;  // digests of what a foreign operator is to leave alone
  Bytes asked_B = 0;  // results and workspaces, together at most; 0: not known
};

}  // namespace lowtide::shim
