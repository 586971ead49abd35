#include "shortage.hpp"

#include <algorithm>

#include "units.hpp"

namespace lowtide::shim {

std::string Shortage::text(Bytes budget_B, const std::string& name) const {
  const std::string who = name.empty() ? "code between operators" : "'" + name + "'";
  return "lowtide: the budget of " + in_units(budget_B) + " is too small here: " + who + " asked for " +
         in_units(need_B) + " (" + std::to_string(need_B) + " B), and no eviction helps. Then " + in_units(persistent_B) +
         " were parameters, gradients and optimizer state; " + in_units(stepped_B) +
         " what an optimizer's step has made; " + in_units(kept_B) +
         " inputs, and what cannot be recomputed since a parameter was written; " + in_units(read_B) +
         " what operators that run read; " + in_units(made_B) + " what can be recomputed; " + in_units(own_B) +
         " the operator's own results and workspaces; " + in_units(free_B) + " were free, " + in_units(hole_B) +
         " of them in one piece. Raise the budget, make the batch smaller, or free tensors of earlier steps.";
}

Shortage shortage(const eager::Ledger& ledger, Bodies& bodies, const SlabCapacity& capacity, Bytes need_B, Bytes hole_B) {
  Shortage found;
  Bytes known_B = 0;
  for (std::size_t i = 0; i < ledger.value_slots(); ++i) {
    const auto id = static_cast<ValueId>(i);
    if (!ledger.holds(id) || !ledger[id].is_resident()) continue;
    const eager::Value& v = ledger[id];
    known_B += v.size_B;
    const bool is_shared = bodies[id].aside != nullptr;
    const auto seen = is_shared ? bodies[id].hold() : nullptr;
    if (seen != nullptr && bodies.offset_of(*seen) != eager::NOWHERE) {
      known_B += v.size_B;
      found.kept_B += v.size_B;
    }
    (v.zone                ? found.persistent_B
     : bodies[id].stepped  ? found.stepped_B
     : v.is_leaf()         ? found.kept_B
     : v.pins > 0          ? found.read_B
                           : found.made_B) += v.size_B;
  }
  found.need_B = need_B;
  found.own_B = std::max<Bytes>(0, capacity.in_use_B() - known_B);
  found.free_B = capacity.capacity_B() - capacity.in_use_B();
  found.hole_B = hole_B;
  return found;
}

}  // namespace lowtide::shim
