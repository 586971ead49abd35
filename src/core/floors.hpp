// Floors: bytes that no schedule of a program can do without, proved in exact integers.
//
// Class: any recomputation, any prefetches; first runs in program order; one recipe per value, in place or not. All
// floors are for the cut point at which the base recipe of a stage starts: then exactly the earlier stages have had
// their first run.
#pragma once
#include <vector>

#include "program.hpp"

namespace lowtide {

// Per stage: fixed bytes + what the stage reads + what is needed later and cannot be rematerialised + the least that
// its own run allocates. O(stages + reads).
std::vector<Bytes> operator_floors(const Program& program);

// The same for one stage, stronger: the least bytes from which everything needed later can still be computed.
// "Keep v, or recompute its producer, which needs its own reads" is a closure, so the least is a minimum cut
// (Dinic, Soviet Math. Doklady 11, 1970). O(V^2 E) at worst, milliseconds in practice.
Bytes cut_floor(const Program& program, Index stage);

}  // namespace lowtide
