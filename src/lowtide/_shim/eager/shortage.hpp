// Shortage: a request that did not fit, and who had the bytes then: what an out-of-memory error says.
#pragma once
#include <string>

#include "bodies.hpp"
#include "eager/ledger.hpp"
#include "slab_capacity.hpp"

namespace lowtide::shim {

struct Shortage {
  Bytes need_B = 0;
  Bytes persistent_B = 0;    // parameters, gradients and optimizer state
  Bytes stepped_B = 0;  // made by an optimizer's step, and not in the persistent zone yet: new state, or temporaries
  Bytes kept_B = 0;     // inputs, and what cannot be recomputed any more
  Bytes read_B = 0;     // what running operators read, and can be recomputed
  Bytes made_B = 0;     // what can be recomputed, and was kept: evicting it made no hole of that size
  Bytes own_B = 0;      // of nobody that is known: results and workspaces of the operator that runs
  Bytes free_B = 0, hole_B = 0;  // in all, and in one piece

  // In words; name: of the operator that asked, empty for code between operators.
  std::string text(Bytes budget_B, const std::string& name) const;
};

// Who has the bytes now. O(values).
Shortage shortage(const eager::Ledger& ledger, Bodies& bodies, const SlabCapacity& capacity, Bytes need_B, Bytes hole_B);

}  // namespace lowtide::shim
