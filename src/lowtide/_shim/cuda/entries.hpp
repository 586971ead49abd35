// Entries: the functions that torch's pluggable CUDA allocator calls.
//
// OVER BUDGET lowtide_cuda_malloc throws c10::OutOfMemoryError, which torch hands through its own frames to Python as
// torch.OutOfMemoryError: a null pointer would reach the next kernel. Throwing out of a function with C linkage is
// defined between C++ callers, and torch calls it through a std::function.
// lowtide_cuda_free never throws. A block whose device is unknown to us is nobody's: it is ignored.
#pragma once
#include <sys/types.h>

#include <functional>
#include <utility>

#include "runtime.hpp"

#define LOWTIDE_ENTRY __attribute__((visibility("default")))

extern "C" {
LOWTIDE_ENTRY void* lowtide_cuda_malloc(ssize_t size, int device, CUstream_st* stream);
LOWTIDE_ENTRY void lowtide_cuda_free(void* p, ssize_t size, int device, CUstream_st* stream);
LOWTIDE_ENTRY void lowtide_cuda_record_stream(void* p, CUstream_st* stream);
// torch.cuda.empty_cache(): releases what no stream uses any more.
LOWTIDE_ENTRY void lowtide_cuda_reset();
// The block that an address lies in, as torch asks for it before it shares memory with another process: refused.
LOWTIDE_ENTRY void* lowtide_cuda_base(void* p, std::size_t* size);
}

namespace lowtide::shim {

using PoolId = std::pair<unsigned long long, unsigned long long>;

// torch asks for a pool of its own before it captures a CUDA graph, and for torch.cuda.MemPool: both are refused.
void begin_pool(int device, PoolId pool, std::function<bool(CUstream_st*)> filter);

}  // namespace lowtide::shim
