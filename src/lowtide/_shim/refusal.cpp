// What a refused request is told: who asked, how much, what is in use, and what to do about it.
#include "slab.hpp"
#include "units.hpp"

namespace lowtide::shim {

std::string Slab::refusal(Bytes size_B, const Run* run, bool worker) {
  if (!claim()) return "lowtide: the arena of this step was closed while a thread asked it for memory";
  const ArenaStatistics now = arena_->statistics();
  unclaim();
  if (options_.values)
    return "lowtide: the budget of " + in_units(now.capacity_B) + " is too small here: code between operators asked for " +
           in_units(size_B) + " (" + std::to_string(size_B) + " B), and no eviction helps. " + in_units(now.in_use_B) +
           " are in use, " + in_units(now.capacity_B - now.in_use_B) + " free, " + in_units(now.largest_hole_B) +
           " of them in one piece. Raise the budget, make the batch smaller, or free tensors of earlier steps.";
  const bool is_in_pieces = now.capacity_B - now.in_use_B >= size_B;
  (is_in_pieces ? no_contiguity_ : no_capacity_).fetch_add(1, std::memory_order_relaxed);
  const std::string phase = text_of(phase_.load(std::memory_order_relaxed));
  std::string who;
  if (worker) {
    who = "a worker thread of an operator";
  } else if (run != nullptr && run->statement >= 0) {
    who = "'" + text_of(run->name()) + "' (statement " + std::to_string(run->statement) + ")";
  }
  if (who.empty()) who = phase;
  if (who.empty()) who = "code without a plan";
  std::string text = "lowtide: the budget of " + in_units(now.capacity_B) + " is spent: " + who + " asked for " +
                     in_units(size_B) + " (" + std::to_string(size_B) + " B), " + in_units(now.in_use_B) +
                     " are in use and the largest hole is " + in_units(now.largest_hole_B) + ". ";
  if (is_in_pieces) text += "The free bytes would suffice, but lie in pieces. ";
  return text + "Raise the budget, or make the batch smaller; lowtide.snapshot() lists who holds which bytes.";
}

}  // namespace lowtide::shim
