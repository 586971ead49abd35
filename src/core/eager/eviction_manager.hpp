// EvictionManager: frees bytes, evicts, rematerialises, releases; what every call does to the ledger.
//
// It stands between the ledger, the capacity, the policy that chooses, and the executor that carries out. A simulation
// and the runtime under torch use it alike. A call goes like this, under one lock but for (2):
//   1. enter(): its inputs are pinned. Where it says that some are absent, a Recovery brings them first.
//   2. the kernel runs, without the lock. A request for bytes that finds no place arrives as make_free().
//   3. record(): the call, what it made and where; then leave().
// The end of the last handle is died(). Before a leaf is written to, everything in ledger().dependents(leaf) is
// recovered and made a leaf by commit(), so that nothing alive needs the old content; the leaf remains the same value.
//
// INVARIANT: what is allocated is what is resident, and what running operators have taken and not yet recorded.
// THREADS: the caller holds one lock. Nothing here waits.
#pragma once
#include <memory>
#include <string>

#include "neighbourhood.hpp"
#include "ledger.hpp"
#include "executor.hpp"
#include "policy.hpp"
#include "recovery.hpp"
#include "capacity.hpp"

namespace lowtide::eager {

struct EvictionStatistics {
  std::int64_t evictions = 0;  // by choice of the policy; values that died are not among them
  Bytes evicted_B = 0;
  std::int64_t recomputations = 0;
  Nanoseconds recompute_ns = 0;
  std::int64_t searches = 0;  // requests that found no place
  double search_s = 0;        // from then to success
  std::int64_t moves = 0;
  Bytes moved_B = 0;
  std::int64_t sends = 0, fetches = 0;
  Bytes sent_B = 0, fetched_B = 0;
  std::int64_t samples = 0;  // requests that evicted
  std::int64_t divergences = 0;  // see Policy::divergences, up to the last end of a step
  double free_shares = 0;    // what was free after each, as a share of the capacity, in sum
  std::uint64_t digest = 0xcbf29ce484222325u;  // of all evictions and recomputations in order, with the clock
  double fragmentation() const { return samples ? free_shares / static_cast<double>(samples) : 0; }
};

class EvictionManager final : public Witness {
 public:
  struct Options {
    bool forgets = true;  // what nothing can need again leaves the ledger; DTR's simulator remembers all of it
  };

  // All must outlive the manager, which is the ledger's witness while it lives.
  EvictionManager(Ledger& ledger, Capacity& capacity, Policy& policy, Executor& executor, Options options);
  EvictionManager(Ledger& ledger, Capacity& capacity, Policy& policy, Executor& executor)
      : EvictionManager(ledger, capacity, policy, executor, Options()) {}
  ~EvictionManager() override;
  EvictionManager(const EvictionManager&) = delete;
  EvictionManager& operator=(const EvictionManager&) = delete;

  // A call's inputs are pinned and count as used, each as often as it is named. False: some are absent, and nothing was
  // done; begin a Recovery of them, which does it.
  // `read`: of them, what its recomputation would read; record() or used() names the same.
  [[nodiscard]] bool enter(std::uint64_t name, Slice<ValueId> inputs, Slice<ValueId> read);
  [[nodiscard]] bool enter(std::uint64_t name, Slice<ValueId> inputs) { return enter(name, inputs, inputs); }
  // A call that has just run between enter() and leave(), and where its outputs lie; anything for views, and for what
  // took over an input: what handles of that one mean is the new content then.
  CallId record(const CallSpec& spec, Slice<Bytes> offsets_B);
  // Instead of record(): a call that made nothing that can be recomputed, as one that writes to leaves.
  void used(std::uint64_t name, Slice<ValueId> read, Nanoseconds cost_ns);
  // Takes the pins back. What was recovered and is not alive may go.
  void leave(Slice<ValueId> inputs);

  // The last handle of a root and its views is gone. Its bytes go at once where they can be recomputed and nobody has
  // pinned them; it leaves once nothing needs it.
  void died(ValueId root);
  // The same, for bytes that are free already.
  void vanished(ValueId root);
  // A root's bytes go, pinned or not; it can be recomputed.
  void give_up(ValueId root);
  // A resident root becomes a leaf.
  void commit(ValueId root);
  void step_ended() {
    policy_.step_ended(scene_);
    statistics_.divergences = policy_.divergences();
  }

  // Evicts, and slides where the policy says so, until need_B fit. False: nothing helps any more.
  [[nodiscard]] bool make_free(Bytes need_B);
  // A block, for which others are evicted; NOWHERE: nothing helps. Nothing at all takes no block, and lies at 0.
  Bytes allocate(Bytes size_B, std::uint64_t tag, Nanoseconds cost_ns);
  End end_for(Nanoseconds cost_ns, Bytes size_B) const { return policy_.end_for(cost_ns, size_B); }
  void evict(ValueId root);
  // Slides blocks together; whether need_B fit then.
  bool slide(Bytes need_B);
  // Slides everything together that does not persist: to be said before a step, so that steps begin alike.
  void compact();

  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  Capacity& capacity() { return capacity_; }
  Policy& policy() { return policy_; }
  const Neighbourhood& neighbourhood() const { return neighbourhood_; }
  const EvictionStatistics& statistics() const { return statistics_; }
  std::int64_t weighed() const { return scene_.weighed; }
  Scene& scene() { return scene_; }  // what the policy looks at
  void forget_statistics();

  void value_leaves(ValueId value) override;
  void call_leaves(CallId call) override;

 private:
  friend class Recovery;

  template <class SlideBlocks>
  void slide_with(const SlideBlocks& slide_blocks);
  void take_over(ValueId old, ValueId made);
  void let_go(ValueId root, bool sheds);
  // For recoveries.
  void recompute(CallId call, ValueId wanted, Slice<char> keep, Slice<ValueId> over, Slice<Bytes> offsets_B);
  void fetched(ValueId root, Bytes offset_B);
  bool is_spare(ValueId input) const;
  void note(std::uint64_t number) { statistics_.digest = (statistics_.digest ^ number) * 0x100000001b3u; }
  void note(std::uint64_t kind, std::int64_t serial);

  Ledger& ledger_;
  Capacity& capacity_;
  Policy& policy_;
  Executor& executor_;
  Options options_;
  Neighbourhood neighbourhood_;
  Scene scene_;
  EvictionStatistics statistics_;
  std::vector<ValueId> victims_, over_, views_;
};

}  // namespace lowtide::eager
