// Allocator: torch's CPU allocator once lowtide has asked for it. Stock behaviour until a thread is engaged.
//
// It is installed once and never removed: torch looks up the active allocator when it releases raw memory.
// CONTRACT with torch: a block's context is its address, and every block has the same deleter, `release`, which asks
// who owns the address. So blocks from before the installation, blocks that outlive their slab's use, and releases
// from any thread are right without a table of blocks.
// WHO IS SERVED FROM WHERE. A thread that is engaged: from its slab, or torch's OutOfMemoryError is raised. A worker
// of a parallel operator: from the slab engaged last; with Options::all_threads so is every other thread. Everybody
// else, and requests of no bytes: from the stock allocator. Thread 0 of a parallel region is the thread that opened
// it, so one that is not engaged works for somebody else.
// torch's profiler is told of every block as the stock allocator tells it.
#pragma once
#include "torch_memory.hpp"

namespace lowtide::shim {

// Installs it on the first call. Throws std::runtime_error where this torch does not allow it.
void install();
bool is_installed();
// Whether torch still asks it: another library may have put its own in front since.
bool is_in_force();

}  // namespace lowtide::shim
