// Policy: which values go when bytes are needed. One file per policy in policies/, one line each in catalogue.cpp.
//
// CONTRACT. choose() names values to evict now (evictable ones, each once) for a request that does not fit. The
// manager evicts them in that order, tries again, and asks for more as long as the request does not fit; none says that
// no eviction helps. Where the policy slides, the manager first tries to slide blocks together.
// A policy depends on nothing but the scene and what it was told: the same run gives the same choices, on any machine,
// and the same as the policy of that name in Python (tests/oracle/policies). So a score is a double made of
// integers in the same order of operations, and every tie has a rule.
// choose() may be called while a kernel runs, on any thread, under the manager's lock. One instance serves one run.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "neighbourhood.hpp"
#include "ledger.hpp"
#include "executor.hpp"
#include "capacity.hpp"

namespace lowtide::eager {

// What a policy may look at. It counts in `weighed` the values that it weighs.
struct Scene {
  const Ledger& ledger;
  const Neighbourhood& neighbourhood;
  const Capacity& capacity;
  std::int64_t weighed = 0;
  Executor* executor = nullptr;
  Bytes moved_B = 0;   // slid so far
  Nanoseconds recompute_ns = 0;  // of all recomputations so far
  bool stuck = false;  // sliding was tried for this request, and did not make the place

  // Whether a value's bytes may be moved now.
  bool is_movable(ValueId id) const { return ledger[id].is_resident() && (!executor || executor->is_movable(id)); }
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual const char* name() const = 0;
  // What it has to know about neighbours.
  virtual Neighbourhood::Kept neighbourhood() const { return {false, false}; }
  // Whether a recovered value that is not alive goes with its last pin; else it waits to be chosen.
  virtual bool sheds() const { return true; }
  // Whether blocks are slid together where the free bytes suffice in pieces.
  virtual bool slides() const { return false; }
  // Whether that is tried once more when no eviction helps.
  virtual bool slides_at_last() const { return false; }
  // Whether what there is should be slid together before the step that begins now.
  virtual bool begins_compacted() const { return false; }
  // Whether end_for() depends on what it is asked.
  virtual bool partitions() const { return false; }
  // How often a replay plays a tape, as steps of one run; the last one counts.
  virtual int passes() const { return 1; }

  virtual void choose(Scene& scene, Bytes need_B, std::vector<ValueId>& victims) = 0;
  // Whether a value that is evicted goes to the host, to be prefetched, instead of being recomputed.
  virtual bool sends(Scene&, ValueId) { return false; }
  // The end of the arena for an output of size_B of a call of cost_ns.
  virtual End end_for(Nanoseconds /*cost_ns*/, Bytes /*size_B*/) const { return End::low; }

  // Of a policy that follows a record: calls that were not where it has them.
  virtual std::int64_t divergences() const { return 0; }

  // What happens, as it happens.
  virtual void began(Scene&, std::uint64_t /*name*/, Slice<ValueId> /*inputs*/) {}  // a first run; before inputs are there
  virtual void ended(Scene&, CallId) {}                                          // that run
  // Instead: it made nothing that can be recomputed, and reads something that can.
  virtual void used(Scene&, std::uint64_t /*name*/, Slice<ValueId> /*inputs*/, Nanoseconds /*cost_ns*/) {}
  virtual void settled(Scene&, ValueId) {}  // a root has become a leaf
  virtual void evicted(Scene&, ValueId) {}
  virtual void restored(Scene&, ValueId) {}
  virtual void died(Scene&, ValueId) {}
  virtual void step_ended(Scene&) {}
};

struct PolicyOptions {
  Bytes host_B = 0;     // free bytes on the host for offloaded values
  double link_Bps = 0;  // of the copies there and back; 0: none are made
};

// The policy of that name; throws std::invalid_argument, naming those there are.
std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyOptions& options = {});
std::vector<std::string> policy_names();

}  // namespace lowtide::eager
