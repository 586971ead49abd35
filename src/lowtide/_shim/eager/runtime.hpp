// Runtime: eager training under a hard budget, without Python.
//
// A boxed fallback below autograd (fallback.cpp) hands every operator of the engaged thread to run(). There the inputs'
// storages become values, absent ones are recovered and all are pinned; the kernel runs; what it made is recorded with
// a replay record (closure.hpp). Decisions are the engine's (src/core/eager): ledger, policy, eviction manager. This
// class performs them.
//
// RULES
// - A storage seen for the first time is a leaf, and is brought into the slab where it may be relocated.
// - An operator that writes over a value consumes it. One that writes over a leaf cannot be undone: whatever is alive
//   and descends from the old content is recovered and committed first. The leaf remains the same value.
// - What an optimizer's step makes is kept, and what it writes is committed.
// - An operator that cannot be recomputed, as one that has results and writes over a leaf, keeps what it makes.
//
// THREADS. One mutex guards everything. It is not held while a kernel runs; a kernel that finds no place for what it
// allocates enters again through relieve(), from any thread. Python's lock is taken in one place, to say that a
// parameter was seen, with the mutex free. A forked child runs plain.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bodies.hpp"
#include "closure.hpp"
#include "costs.hpp"
#include "diary.hpp"
#include "eager/eviction_manager.hpp"
#include "forecasts.hpp"
#include "meter.hpp"
#include "shortage.hpp"
#include "tensors.hpp"

namespace lowtide::shim {

using eager::CallId;
using eager::Index;
using eager::Nanoseconds;
using eager::Slice;

struct StepCosts {
  Nanoseconds cost_ns, recompute_ns;
};

struct RuntimeStatistics {
  std::int64_t calls = 0, retries = 0;
  Nanoseconds cost_ns = 0;
  Bytes foreign_B = 0, spilled_B = 0;
  std::vector<StepCosts> steps;
};

class Runtime final : public eager::Executor {
 public:
  struct Options {
    std::string policy;
    eager::PolicyOptions policy_options;
    Silence silence;
    bool records = false;  // what the program does goes into a diary
    // Told of each parameter when it is first seen; called without the mutex.
    std::function<void(const at::Tensor&)> met_parameter;
    // Told once when a step has recomputed for more than TIMES the cost of a step; called without the mutex.
    std::function<void()> thrashes;
  };

  Runtime(const Gates& gates, Slab& slab, Options options);
  ~Runtime() override;

  // From now on it frees bytes under pressure, until close(), which releases everything as it is.
  void open();
  void close();
  // Recovers and commits all that is alive; what does not fit lies outside the slab then. Returns those bytes. Where a
  // foreign operator has spoilt what things were made from, they remain evicted, and whoever touches them is told.
  Bytes restore_all();

  // One operator of this thread's program, from the fallback.
  void run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  // Of a request that found no place: whether it fits now.
  bool relieve(Bytes size_B);

  // What is persistent: a parameter, a buffer, an optimizer's state.
  void bring_in(const at::Tensor& tensor);
  void gradient_landed(const at::Tensor& gradient);
  // Rematerialises a tensor's bytes for code that reads them past torch's operators; for good: they are not evicted or
  // moved any more.
  void reach(const at::Tensor& tensor, bool for_good);
  // Its bytes are handed to code that may write there past torch's operators: numpy, another library.
  void share(const at::Tensor& tensor);
  // It is about to be written, once, past torch's operators.
  void write(const at::Tensor& tensor);
  void optimizer_began();
  void optimizer_ended();

  // What the program did since it was asked last.
  std::vector<Diary::Entry> take_diary();
  RuntimeStatistics statistics();
  eager::EvictionStatistics eviction_statistics();
  Bytes peak_B() const { return capacity_.peak_B(); }
  std::int64_t weighed();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Values = c10::SmallVector<ValueId, 8>;
  struct Pass;  // one operator in progress

  // passage.cpp
  void look_for_parameter(const c10::IValue& argument, Lock& lock);
  void look_at(Pass& pass, const torch::jit::Stack& stack);
  void before_writing(Pass& pass, Lock& lock);
  void look_before(Pass& pass);
  void look_after(const Pass& pass);
  void capture(Pass& pass, const torch::jit::Stack& stack);
  void note(Pass& pass, torch::jit::Stack& stack);
  void write_down(const Pass& pass, const torch::jit::Stack& stack);
  Diary::Serials serials(Slice<ValueId> values) const;

  // attempt.cpp
  void attempt(Pass& pass, torch::jit::Stack& stack, Lock& lock);
  bool make_again(const Pass& pass, Lock& lock);

  // expectation.cpp
  Likeness likeness(const Closure& closure) const;  // none where nothing is made of it
  void expect(const Likeness& like, Slice<Bytes> copies_B = {});
  bool would_fit(Slice<Bytes> blocks_B);
  void choose_side(const Likeness& like);
  bool was_full() const { return manager_.statistics().searches > 0; }
  void learn(const Likeness& like, Nanoseconds cost_ns, Slice<eager::Made> made, std::size_t consumed);

  // recovery.cpp
  void enter(std::uint64_t name, Slice<ValueId> inputs, Slice<ValueId> read, Lock& lock);
  void bring(Slice<ValueId> wanted, Lock& lock);
  void recompute(eager::Recovery& recovery, CallId call, Lock& lock);
  void take_back(eager::Recovery& recovery, CallId call, torch::jit::Stack& results, std::vector<c10::Storage>& given);
  void fetch(eager::Recovery& recovery, ValueId value, Lock& lock);
  void commit(ValueId value, Lock& lock);
  void settle_dependents(ValueId leaf, Lock& lock);
  c10::Storage hold(ValueId value);
  static c10::intrusive_ptr<Storage> copy_of(const Storage& storage);

  // arrivals.cpp
  ValueId value_of(const c10::TensorImpl& tensor);
  ValueId meet(Storage& storage, bool zone);
  ValueId keep(Storage& storage);
  ValueId renew(ValueId value, Lock& lock);
  c10::DataPtr capacity_for(Bytes size_B);
  void make_free(Bytes size_B);
  void admit(ValueId value);
  bool take_in(Storage& storage);
  bool grow_persistent(Bytes size_B);
  Bytes persistent_lo() const { return slab_.persistent_lo(); }

  void take_deaths();
  void sweep();
  bool make_hole(Bytes size_B);
  Bytes hole_for_another(Bytes hole_B, bool is_clean, const std::string& name);
  Shortage short_of(Bytes need_B);
  bool may_move(ValueId value);
  bool may_move(ValueId value, const Body& body, const Storage& storage) const;
  [[noreturn]] void refuse(Bytes need_B, const std::string& name);
  void look_for_beginning(const Pass& pass);
  void step_ends();
  void look_for_thrashing(Lock& lock);
  static bool is_learning();  // gradients are on, or a backward runs
  bool is_stepping() const { return in_optimizer_ && !is_learning(); }
  void tell(Lock& lock);      // Python of parameters that were seen

  void release(ValueId value) override;
  bool is_movable(ValueId value) override;
  bool relocate(ValueId value, Bytes from_B, Bytes to_B) override;
  bool send(ValueId value) override;
  void forget_value(ValueId value) override { bodies_.forget(value); }
  void forget_call(CallId call) override;

  const Gates& gates_;
  Slab& slab_;
  const Options options_;
  std::mutex mutex_;
  Operators operators_;
  Closures closures_;
  Bodies bodies_;
  Forecasts forecasts_;
  SlabCapacity capacity_;
  eager::Ledger ledger_;
  std::unique_ptr<eager::Policy> policy_;
  eager::EvictionManager manager_;
  RuntimeStatistics statistics_;
  Diary diary_;
  std::vector<ValueId> running_;  // what the kernel that runs now was given
  std::vector<at::Tensor> newcomers_;
  Extents results_;               // of the operator that is noted
  std::vector<c10::intrusive_ptr<Storage>> moving_;  // held while blocks slide: none may die then
  const std::string* waits_ = nullptr;  // the operator for which others are recomputed
  std::optional<Shortage> shortage_;  // of the request that was refused last
  bool is_open_ = false, is_begun_ = false, in_optimizer_ = false, is_over_ = false;
  Nanoseconds step_cost_ns_ = 0, step_recompute_ns_ = 0, longest_step_ns_ = 0;
  bool has_thrashed_ = false;
  bool is_spoilt_ = false;  // what is evicted cannot be recomputed: a foreign operator wrote what it came from
};

}  // namespace lowtide::shim
