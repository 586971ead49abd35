// Moves: changes of a retention that are worth trying. Pure functions of the state; none applies anything.
#pragma once
#include <vector>

#include "retention.hpp"

namespace lowtide {

// A retention of `gap` with which the value is rematerialised by the same means as now, or by the only one.
Index blocking(const Retention& state, Index gap, Index retention);

// Appends the change that makes `value` absent across `stage`, or only passing through if it is rematerialised there,
// or absent behind it where the stage's base recipe can take it over; false if its gap there is not free, the base
// recipe reads it otherwise, or it is absent already.
bool drop_across(const Retention& state, Index value, Index stage, std::vector<Change>& changes);

// Appends drops across `stage` of what the producer of `value` reads, `depth` levels deep: a dropped value
// keeps its parents alive unless they go too.
void drop_parents(const Retention& state, Index value, Index stage, Index depth, std::vector<Change>& changes);

// Appends drops across `stage` of the other outputs of the producer of `value`: one recomputation makes them all.
void drop_siblings(const Retention& state, Index value, Index stage, std::vector<Change>& changes);

// Appends, for what the producer of `value` reads and prefetches bring in across `stage`, that it is recomputed;
// `depth` levels deep.
void recompute_parents(const Retention& state, Index value, Index stage, Index depth, std::vector<Change>& changes);

// Appends KEEP for the gap of `value` at `stage`, and for what its producer reads, `depth` levels deep.
void keep_across(const Retention& state, Index value, Index stage, Index depth, std::vector<Change>& changes);

// Time to rematerialise `value` at `stage`: recomputations of its producer and of what that misses, at most `limit` of
// them, and the price of what of it is prefetched.
Picos closure_time(const Retention& state, Index value, Index stage, Index limit);


// Price of fetching `value` once more, and of sending it if nothing else asks for that.
Picos fetch_time(const Retention& state, Index value);

}  // namespace lowtide
