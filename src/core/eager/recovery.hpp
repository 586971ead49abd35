// Recovery: rematerialises absent values, one job after the other, without recursion.
//
//   recovery.begin(inputs);                    // values that a call is about to read
//   while (Job job = recovery.next()) {        // under the lock
//     ... perform it, without the lock ...
//     recovery.done(offsets);                  // under the lock
//   }
// and then all of `inputs` are resident and pinned, each once more than before for each time it is named.
//
// A frame is a call that waits for its inputs. When it begins, all of them count as used, and those that are resident
// are pinned; the others come in the order of its arguments, each by a frame of its own, as in DTR (Kirisame et al.,
// Dynamic Tensor Rematerialization, ICLR 2021). Frames lie on a stack of our own: chains of evicted values may be
// longer than the language's is deep. Outputs that were not wanted are kept where the policy keeps them or a frame
// waits for them.
#pragma once
#include <vector>

#include "ledger.hpp"

namespace lowtide::eager {

class EvictionManager;

// Something to perform. `recompute`: run `call`; its inputs are resident and pinned. `fetch`: prefetch `value`.
struct Job {
  enum class Kind : std::uint8_t { none, recompute, fetch };
  Kind kind = Kind::none;
  CallId call = NO_CALL;
  ValueId value = NO_VALUE;
  explicit operator bool() const { return kind != Kind::none; }
};

class Recovery {
 public:
  explicit Recovery(EvictionManager& manager) : manager_(manager) {}
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  void begin(Slice<ValueId> wanted);
  Job next();
  // Of a recomputation's output: whether it is kept. The executor frees the bytes of the others before it says done().
  // To be asked when the call has run: what was evicted for its sake is kept with it.
  bool keeps(std::size_t output) const;
  // The input over whose bytes the output is written, as in the first run; else NO_VALUE, and where the call consumes
  // an input it runs on a copy of it: somebody else waits for the content. Of an output that takes over and is not kept
  // the manager frees the bytes.
  ValueId over(std::size_t output) const { return over_[output]; }
  // The job is done: where each output lies (of a prefetch: the value). Anything for views, for outputs that took over,
  // and for those that are not kept.
  void done(Slice<Bytes> offsets_B);
  // Something went wrong: takes back all pins of this recovery.
  void abandon();

 private:
  struct Frame {
    CallId call;      // NO_CALL: the values that are wanted at last
    ValueId wanted;   // the output for whose sake the call runs
    std::size_t pinned, absent, next, absent_end;  // its parts of `pinned_` and `absent_`; the absent ones up to next came
  };
  void push(CallId call, ValueId wanted, Slice<ValueId> inputs);
  void prepare(const Frame& frame);
  bool is_awaited(ValueId value) const;

  EvictionManager& manager_;
  Job job_;
  std::vector<Frame> frames_;
  std::vector<ValueId> pinned_, absent_, inputs_;
  std::vector<Index> awaited_;  // by ValueId: how often frames still wait for it
  std::vector<char> keep_;
  std::vector<ValueId> over_;
};

}  // namespace lowtide::eager
