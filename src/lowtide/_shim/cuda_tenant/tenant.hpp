// Tenant: arenas inside torch's own CUDA allocator, for threads that run a fitted step. Everybody else gets what torch
// gives.
//
// torch asks one object for a GPU's memory (c10::cuda::CUDACachingAllocator::allocator). The tenant is put in its place,
// at any time and once, and hands every question on to it, so that statistics, snapshots, pools, CUDA graphs and memory
// that is shared with other processes are torch's as ever. An arena is ONE block that was taken from torch: to torch a
// large allocation, which goes back when the arena is closed and its last tensor has gone.
// WHO IS SERVED FROM WHERE. A thread that is engaged with an arena of the current device: from it, or torch's
// OutOfMemoryError is raised; what is no segment's, where the arena is not strict, from torch instead (a spill). With
// Options::all_threads so is every other thread. Requests of no bytes, those on another device, and those of a stream
// that allocates to one of torch's pools, as a CUDA graph's capture does: from torch.
// CONTRACT with torch: blocks of an arena have the deleter `release`; torch's keep torch's own, by which torch knows
// them again. Only while events are logged do new ones get ours as well, and record_stream restores it for torch.
// STREAMS. A block remembers the stream on which it was asked for, as torch's do (cuda/device.hpp says what follows).
// An arena's block was taken on one stream: where others have used it, the device is waited for before the
// block goes back.
#pragma once
#include "cuda/device.hpp"
#include "handle.hpp"
#include "torch_memory.hpp"

namespace lowtide::shim {

// Puts the tenant in front of torch's allocator, on the first call. Throws std::runtime_error: there is no CUDA in this
// process, or an allocator that cannot be built upon.
void install_tenant();
// Whether torch still asks it.
bool tenant_is_active();
// A slab inside a block that torch gives on the device, for whose current stream it is ordered first. Throws what torch
// throws, std::invalid_argument.
std::unique_ptr<Handle> open_arena(const Slab::Options& options, int device);
// Statistics of streams and requests; null: the slab is gone.
Device* device_of(const Slab& slab);

}  // namespace lowtide::shim
