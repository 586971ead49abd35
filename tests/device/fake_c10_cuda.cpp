// torch's library of CUDA, as far as lowtide's tenant asks it, on the simulated GPU: compiled against torch's own headers.
//
// Its allocator is as simple as one can be: every block is one reservation. Its blocks have a deleter of its own, by
// which it knows them again, as torch's has.
#include <c10/cuda/CUDACachingAllocator.h>

#include <c10/core/StorageImpl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "fake_cuda.hpp"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

thread_local std::uintptr_t my_stream = 0;

struct Stock;
Stock& stock();
void release(void* p);

struct Stock final : torch_cuda::CUDAAllocator {
  std::map<void*, std::size_t> blocks;
  std::map<void*, std::uintptr_t> streams;    // on which they were asked for
  std::map<void*, std::uintptr_t> used_on;    // of record_stream
  std::size_t bytes = 0;
  int pools = 0;

  void* take(std::size_t n, std::uintptr_t stream) {
    void* p = nullptr;
    if (n == 0) return nullptr;
    if (fake::reserve(&p, n) != fake::OK)
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", n, " bytes.");
    blocks[p] = n;
    streams[p] = stream;
    bytes += n;
    return p;
  }
  c10::DataPtr allocate(std::size_t n) override {
    void* p = take(n, my_stream);
    return {p, p, &::release, c10::Device(c10::DeviceType::CUDA, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &::release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
  void* raw_alloc(std::size_t n) override { return take(n, my_stream); }
  void* raw_alloc_with_stream(std::size_t n, cudaStream_t stream) override {
    return take(n, reinterpret_cast<std::uintptr_t>(stream));
  }
  void raw_delete(void* p) override {
    if (p == nullptr) return;
    bytes -= blocks.at(p);
    blocks.erase(p);
    fake::give_back(p);
  }
  bool initialized() override { return true; }
  void init(int) override {}
  double getMemoryFraction(DeviceIndex) override { return 1; }
  void setMemoryFraction(double, DeviceIndex) override {}
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void emptyCache(MempoolId_t) override {}
  void cacheInfo(DeviceIndex, std::size_t* largest) override { *largest = 12345; }
  void* getBaseAllocation(void* p, std::size_t* size) override {
    *size = blocks.at(p);
    return p;
  }
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    if (block.get_deleter() == &::release) used_on[block.get()] = reinterpret_cast<std::uintptr_t>(stream.stream());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<std::int64_t>(bytes);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
  torch_cuda::SnapshotInfo snapshot(MempoolId_t, bool) override {
    torch_cuda::SnapshotInfo info;
    for (const auto& [p, size] : blocks) {
      torch_cuda::SegmentInfo segment;
      segment.address = reinterpret_cast<std::size_t>(p);
      segment.total_size = size;
      info.segments.push_back(segment);
    }
    return info;
  }
  void beginAllocateToPool(DeviceIndex, MempoolId_t, std::function<bool(cudaStream_t)>) override { ++pools; }
  void endAllocateToPool(DeviceIndex, MempoolId_t) override { --pools; }
  void releasePool(DeviceIndex, MempoolId_t) override {}
  torch_cuda::ShareableHandle shareIpcHandle(void* p) override { return {0, std::to_string(blocks.at(p))}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return nullptr; }
  void recordHistory(bool, torch_cuda::CreateContextFn, std::size_t, torch_cuda::RecordContext, bool,
                     const std::vector<std::string>&) override {}
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver) override {}
#if LOWTIDE_TORCH_OBSERVES_REJECTIONS
  void attachOomRejectionObserver(torch_cuda::OomRejectionObserver) override {}
#endif
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker) override {}
  void enablePeerAccess(DeviceIndex, DeviceIndex) override {}
  cudaError_t memcpyAsync(void* to, int, const void* from, int, std::size_t n, cudaStream_t, bool) override {
    std::memcpy(to, from, n);
    return cudaSuccess;
  }
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(DeviceIndex, MempoolId_t) override { return nullptr; }
  torch_cuda::CheckpointDelta setCheckpointPoolState(DeviceIndex, std::shared_ptr<torch_cuda::AllocatorState>) override {
    return {};
  }
  std::string name() override { return "simulated"; }
};

Stock& stock() {
  static Stock* const one = new Stock;
  return *one;
}

void release(void* p) { stock().raw_delete(p); }

}  // namespace

namespace c10::cuda {

namespace CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{&stock()};
}

DeviceIndex current_device() { return static_cast<DeviceIndex>(fake::gpu().device); }
cudaStream_t CUDAStream::stream() const { return reinterpret_cast<cudaStream_t>(stream_.id()); }
CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  return CUDAStream(c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, device < 0 ? 0 : device),
                                static_cast<c10::StreamId>(my_stream)));
}
void c10_cuda_check_implementation(const int, const char*, const char*, const uint32_t, const bool) {}

}  // namespace c10::cuda

extern "C" cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return static_cast<cudaError_t>(fake::memory(free, total));
}

// What a test asks torch for, and asks of the stock allocator behind it.
FAKE void c10_use_stream(std::uintptr_t stream) { my_stream = stream; }
FAKE std::size_t c10_bytes() { return stock().bytes; }
FAKE bool c10_owns(std::uintptr_t p) { return stock().blocks.count(reinterpret_cast<void*>(p)) > 0; }
FAKE std::uintptr_t c10_used_on(std::uintptr_t p) {
  const auto found = stock().used_on.find(reinterpret_cast<void*>(p));
  return found == stock().used_on.end() ? 0 : found->second;
}
FAKE std::size_t c10_segments() { return torch_cuda::snapshot().segments.size(); }
FAKE std::int64_t c10_allocated() { return torch_cuda::getDeviceStats(0).allocated_bytes[0].current; }
FAKE void c10_begin_pool(std::uintptr_t stream) {
  torch_cuda::beginAllocateToPool(0, {0, 1}, [=](cudaStream_t s) { return reinterpret_cast<std::uintptr_t>(s) == stream; });
}
FAKE void c10_end_pool() { torch_cuda::endAllocateToPool(0, {0, 1}); }

// A storage as torch makes one; held until it is dropped.
FAKE std::uintptr_t c10_make_storage(std::size_t size) {
  c10::Allocator* asked = torch_cuda::get();
  auto made = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size, asked->allocate(size),
                                                    asked, true);
  return reinterpret_cast<std::uintptr_t>(made.release());
}
FAKE std::uintptr_t c10_bytes_of(std::uintptr_t storage) {
  return reinterpret_cast<std::uintptr_t>(reinterpret_cast<c10::StorageImpl*>(storage)->mutable_data());
}
FAKE void c10_drop_storage(std::uintptr_t storage) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(reinterpret_cast<c10::StorageImpl*>(storage));
}
