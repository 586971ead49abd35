// Ledger: which contents there are, which calls made them, and which of them have their bytes.
//
// A VALUE is one content of one storage: what an operator wrote, until the next operator writes there. A CALL is an
// operator that was executed: it read values, and made its outputs. A value without a producer is a LEAF: nobody can
// recompute it. A runtime whose calls know the geometry of what they read has no views: a value is all of a storage. In
// recorded executions, which charge time for them, a VIEW is a value without bytes: it shares those of its ROOT, goes
// when they go, and is recomputed by its own call.
//
// A value is RESIDENT while it has bytes at an offset; ON THE HOST while a copy of it lies there; else it is EVICTED,
// and is rematerialised by running its producer again. It is ALIVE while the user has a handle on it. A PIN keeps a
// resident root where it is, and an absent value from leaving the ledger; whoever pins, unpins.
//
// CANDIDATES are the roots that are resident, have a producer, and are not persistent. One without pins may be evicted;
// `filed` says when it last became so, which breaks ties between equal scores.
//
// IN PLACE. A call may consume an input: one of its outputs takes over the input's bytes. The input is then absent and
// not alive; it can be recomputed, into bytes of its own, as long as somebody reads it.
//
// LIFE. References go from a value to its producer and on to what that read, and never back. A value is NEEDED while it
// is alive, its root pinned, or read by a call of the ledger; a call leaves, with all its outputs, once none of them is
// needed; a leaf leaves once it is not needed. Who leaves is told to the witness, while it can still be looked at.
//
// COST. Slots are reused and keep the capacity of their lists: steady work asks the system for no memory. Nothing is
// looked up by hashing. Reading is O(1), recording O(inputs + outputs), leaving O(what leaves).
//
// INVARIANT: check() names the first thing that is broken, or nothing. THREADS: the caller holds one lock.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ids.hpp"

namespace lowtide::eager {

// That a call reads a value: kept by the value, once per call.
struct Reader {
  CallId call;
  Index input;  // which of the call's inputs
};

// The same, kept by the call.
struct Input {
  ValueId value;
  Index place;  // in the value's readers; -1: this call has read it as an earlier input
};

struct Value {
  std::int64_t serial;  // rises with every value made; -1: the slot is empty
  Bytes size_B;
  Bytes offset_B;        // NOWHERE: not resident
  Nanoseconds cost_ns;   // of a root: of all calls that make it and its views
  Nanoseconds last_use;  // of a root: the ledger's clock then
  std::int64_t filed;    // of a candidate: rises with every one that became evictable
  CallId producer;       // NO_CALL: a leaf
  Index output;          // which of the producer's outputs
  ValueId root;          // itself, unless it is a view
  Index pins;            // of a root
  Index place;           // among the candidates, or -1
  bool alive, zone, on_host;
  std::uint64_t handle;  // the executor's
  std::vector<Reader> readers;
  std::vector<ValueId> views;

  bool is_resident() const { return offset_B != NOWHERE; }
  bool is_leaf() const { return producer == NO_CALL; }
  bool is_evicted() const { return offset_B == NOWHERE && !on_host; }
  bool is_candidate() const { return place >= 0; }
  bool is_evictable() const { return place >= 0 && pins == 0; }
};

struct Output {
  ValueId value;  // NO_VALUE: committed, this call does not rematerialise it any more
  Bytes size_B;
};

struct Consumed {
  Index input, output;
};

struct Call {
  std::int64_t serial;  // rises with every call; -1: the slot is empty
  std::uint64_t name;   // equal for equal operators, else the caller's business
  Nanoseconds cost_ns;
  std::uint64_t closure;      // the executor's
  std::vector<Input> inputs;  // in argument order
  std::vector<Output> outputs;
  std::vector<Bytes> temps_B;  // workspaces
  std::vector<Consumed> consumed;
};

// What a call makes.
struct Made {
  Bytes size_B;
  std::uint64_t handle = 0;
  ValueId view_of = NO_VALUE;
};

struct CallSpec {
  std::uint64_t name = 0;
  Nanoseconds cost_ns = 0;
  std::uint64_t closure = 0;
  Slice<ValueId> inputs;
  Slice<Made> outputs;
  Slice<Bytes> temps_B;
  Slice<Consumed> consumed;
};

// Who has to know when something leaves for good. Called before it is gone; may read the ledger and displace the value,
// and must change nothing else.
class Witness {
 public:
  virtual ~Witness() = default;
  virtual void value_leaves(ValueId value) = 0;  // its bytes, if it is resident, are the witness's to free
  virtual void call_leaves(CallId call) = 0;
};

class Ledger {
 public:
  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Told of everything that leaves; one at most, or null.
  void set_witness(Witness* witness) { witness_ = witness; }

  // A content that came from elsewhere: resident, alive, used now.
  ValueId leaf(Bytes size_B, Bytes offset_B, std::uint64_t handle = 0, bool zone = false);
  // A call. Its outputs are alive and absent: see place() and take_over().
  CallId add(const CallSpec& spec);

  const Value& operator[](ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  const Call& call(CallId id) const { return calls_[static_cast<std::size_t>(id)]; }
  const Value& root_of(ValueId id) const { return (*this)[(*this)[id].root]; }

  // Simulated time: the cost of all that ran, from 1.
  Nanoseconds clock() const { return clock_; }
  void advance(Nanoseconds cost_ns) { clock_ += cost_ns; }
  void touch(ValueId id) { at(at(id).root).last_use = clock_; }
  Nanoseconds staleness_ns(const Value& value) const { return clock_ - value.last_use; }

  // Of the value's root.
  void pin(ValueId id) { ++at(at(id).root).pins; }
  void unpin(ValueId id) {
    Value& root = at(at(id).root);
    if (--root.pins == 0 && root.place >= 0) root.filed = next_filed_++;
  }
  // An absent value has its bytes, at this offset; a view has its root's.
  void place(ValueId id, Bytes offset_B);
  // A resident value's bytes lie elsewhere now.
  void move(ValueId id, Bytes offset_B) { at(id).offset_B = offset_B; }
  // A root's bytes are gone, and its views with them.
  void displace(ValueId id);
  // `made` was written over `old`'s bytes.
  void take_over(ValueId old, ValueId made);
  void set_on_host(ValueId id, bool on_host) { at(id).on_host = on_host; }
  // It is in the arena for good.
  void set_place(ValueId id);
  // The user's last handle is gone, or a handle is there again.
  void set_alive(ValueId id, bool alive) { at(id).alive = alive; }
  // A root becomes a leaf: its producer does not rematerialise it any more.
  void commit(ValueId id);
  // Lets what nobody needs leave, from this value up. Whoever takes away a reason to keep it calls this.
  void settle(ValueId id);

  void set_handle(ValueId id, std::uint64_t handle) { at(id).handle = handle; }
  void set_closure(CallId id, std::uint64_t closure) { calls_[static_cast<std::size_t>(id)].closure = closure; }

  const std::vector<ValueId>& candidates() const { return candidates_; }  // in no particular order
  // Whether running the value's producer rematerialises it: what a call's outputs are asked.
  bool makes(const Output& output) const { return output.value != NO_VALUE; }
  // Alive roots that are made, directly or not, from what this leaf holds, in the order in which to keep them when it
  // is about to change. All of them have to be resident in the end: what is goes first, so that none of it is evicted
  // for the others' sake; then by serial.
  std::vector<ValueId> dependents(ValueId leaf) const;
  bool holds(ValueId id) const { return (*this)[id].serial >= 0; }
  std::size_t value_slots() const { return values_.size(); }  // every ValueId is below this
  std::size_t call_slots() const { return calls_.size(); }
  std::int64_t values() const { return value_count_; }
  std::int64_t calls() const { return call_count_; }

  std::string check() const;

 private:
  Value& at(ValueId id) { return values_[static_cast<std::size_t>(id)]; }
  Call& at_call(CallId id) { return calls_[static_cast<std::size_t>(id)]; }
  ValueId new_value(Bytes size_B);
  CallId new_call();
  void enlist(Value& value, ValueId id);
  void delist(Value& value);
  void unsettle(CallId producer);
  void settle_all();
  void leave(ValueId id);
  void leave_call(CallId id);
  void drop_reader(const Input& input);
  bool is_needed(const Value& value) const {
    return value.alive || (*this)[value.root].pins > 0 || !value.readers.empty();
  }
  bool is_needed(const Call& call) const;

  std::vector<Value> values_;
  std::vector<Call> calls_;
  std::vector<ValueId> unused_values_, candidates_, unsettled_;
  std::vector<CallId> unused_calls_;
  std::int64_t next_value_ = 1, next_call_ = 1, next_filed_ = 0, value_count_ = 0, call_count_ = 0;
  Nanoseconds clock_ = 1;
  bool settling_ = false;
  Witness* witness_ = nullptr;
};

}  // namespace lowtide::eager
