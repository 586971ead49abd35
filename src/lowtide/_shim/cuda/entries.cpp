#include "entries.hpp"

#include <c10/util/Exception.h>

#include "device.hpp"

using namespace lowtide;
using namespace lowtide::shim;

namespace {

[[noreturn]] C10_NOINLINE void refuse(Device& device, Bytes size_B) {
  C10_THROW_ERROR(OutOfMemoryError, device.refusal(size_B));
}

}  // namespace

void* lowtide_cuda_malloc(ssize_t size, int device, CUstream_st* stream) {
  if (size == 0) return nullptr;
  TORCH_CHECK(size > 0, "lowtide: a block of ", size, " bytes was asked for");
  Device& found = devices().at(device);
  void* p = found.allocate(size, stream);
  if (p == nullptr) refuse(found, size);
  return p;
}

void lowtide_cuda_free(void* p, ssize_t, int, CUstream_st* stream) {
  if (Device* device = p == nullptr ? nullptr : devices().owner_of(p)) device->release(p, stream);
}

void lowtide_cuda_record_stream(void* p, CUstream_st* stream) {
  if (Device* device = p == nullptr ? nullptr : devices().owner_of(p)) device->used(p, stream);
}

void lowtide_cuda_reset() {
  for (int i = 0; i < Devices::MOST; ++i)
    if (Device* device = devices().alive(i)) device->settle(false);
}

void* lowtide_cuda_base(void*, std::size_t*) {
  TORCH_CHECK(false, "lowtide's GPU arena is one allocation, which cannot be shared with another process piece by piece:"
                     " share tensors through the CPU, or train without lowtide.install_cuda");
}

namespace lowtide::shim {

void begin_pool(int, PoolId, std::function<bool(CUstream_st*)>) {
  TORCH_CHECK(false, "lowtide's GPU arena has no separate pools, which CUDA graphs and torch.cuda.MemPool need: "
                     "do without them, or train without lowtide.install_cuda (budgets are capped then)");
}

}  // namespace lowtide::shim
