// Executor: carries out what the eviction manager decides. In a simulation it keeps books; under torch it moves real
// bytes.
//
// Its members are called under the manager's lock, and must be short: they run no operator and wait for no other
// thread. What takes long, a recomputation or a prefetch, is a Job that the caller performs without the lock (see
// recovery.hpp).
#pragma once
#include "ids.hpp"

namespace lowtide::eager {

class Executor {
 public:
  virtual ~Executor() = default;
  // Gives a root's bytes back to the capacity; the ledger still says where they are. Never called for a value of no
  // bytes.
  virtual void release(ValueId value) = 0;
  // Whether a resident root's bytes may be moved now.
  virtual bool is_movable(ValueId) { return false; }
  // Moves a root's bytes, as memmove would; false: they are left in place. Called in the midst of the capacity's work:
  // it must not be asked anything.
  virtual bool relocate(ValueId, Bytes /*from_B*/, Bytes /*to_B*/) { return false; }
  // Copies a root's bytes to the host and frees them.
  // False: there was nothing to copy any more, and nothing was done.
  virtual bool send(ValueId) { return true; }
  // It leaves the ledger: the handle and host copy of a value, the replay record of a call, can go.
  virtual void forget_value(ValueId) {}
  virtual void forget_call(CallId) {}
};

}  // namespace lowtide::eager
