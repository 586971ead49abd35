#include "tenant.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <pthread.h>

#include <array>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "event_log.hpp"
#include "names.hpp"
#include "slabs.hpp"
#include "thread.hpp"

namespace lowtide::shim {

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

torch_cuda::CUDAAllocator* stock = nullptr;
c10::DeleterFnPtr stock_release = nullptr;

Stream stream_of(int device) { return c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream(); }

// A block of torch's, taken for one slab and given back once.
class TorchBlock final : public Memory {
 public:
  TorchBlock(int device, Stream taken_on) : device_(device), taken_on_(taken_on) {}

  std::size_t unit() const override { return Device::ALIGNMENT_B; }
  char* reserve(std::size_t size) override {
    const OnDevice here(device_);
    return static_cast<char*>(stock->raw_alloc_with_stream(size, taken_on_));
  }
  void give_back(char* base, std::size_t) noexcept override;
  bool trim(char*, std::size_t) noexcept override { return false; }

  Stream taken_on() const { return taken_on_; }

 private:
  const int device_;
  const Stream taken_on_;
};

// One arena: its block, its slab, and the streams of its blocks.
class GpuArena {
 public:
  GpuArena(const Slab::Options& options, int device, Stream taken_on)
      : memory_(device, taken_on), device_(device, *Slab::open(options, memory_)) {}

  Device& device() { return device_; }
  Stream taken_on() const { return memory_.taken_on(); }
  bool owns(const void* p) { return device_.slab().owns(p); }

  void remember(void* p, Stream stream) {
    if (stream == taken_on()) return;
    const std::lock_guard<std::mutex> hold(mutex_);
    strangers_[p] = stream;
    has_strangers_.store(true);
  }
  void release(void* p) {
    Stream stream = taken_on();
    if (has_strangers_.load()) {
      const std::lock_guard<std::mutex> hold(mutex_);
      const auto found = strangers_.find(p);
      if (found != strangers_.end()) {
        stream = found->second;
        strangers_.erase(found);
      }
    }
    device_.release(p, stream);
  }
  void before_fork() {
    mutex_.lock();
    device_.before_fork();
  }
  void after_fork() {
    device_.after_fork();
    mutex_.unlock();
  }

 private:
  TorchBlock memory_;
  Device device_;
  std::mutex mutex_;
  std::atomic<bool> has_strangers_{false};
  std::unordered_map<void*, Stream> strangers_;  // blocks of other streams than that
};

// Arenas whose block is theirs; never destroyed, since a reader may hold on to one.
class GpuArenas {
 public:
  // Nobody has a block of an arena that is not entered yet.
  void enter(GpuArena* arena) {
    for (auto& place : table_) {
      GpuArena* none = nullptr;
      if (place.compare_exchange_strong(none, arena)) return;
    }
    throw std::length_error("too many arenas are open");
  }
  void leave(const void* base) {
    for (auto& place : table_)
      if (GpuArena* arena = place.load(); arena != nullptr && arena->device().slab().base() == base) place.store(nullptr);
  }
  GpuArena* owner_of(const void* p) {
    for (auto& place : table_)
      if (GpuArena* arena = place.load(std::memory_order_acquire); arena != nullptr && arena->owns(p)) return arena;
    return nullptr;
  }
  GpuArena* of(const Slab* slab) {
    for (auto& place : table_)
      if (GpuArena* arena = place.load(std::memory_order_acquire); arena != nullptr && &arena->device().slab() == slab)
        return arena;
    return nullptr;
  }
  template <class Visit>
  void visit(const Visit& visit) {
    for (auto& place : table_)
      if (GpuArena* arena = place.load(std::memory_order_acquire)) visit(*arena);
  }

 private:
  std::array<std::atomic<GpuArena*>, Slabs::MOST> table_{};
};

GpuArenas& gpu_arenas() {
  static GpuArenas* const kept = new GpuArenas;
  return *kept;
}

void TorchBlock::give_back(char* base, std::size_t) noexcept {
  const OnDevice here(device_);
  if (GpuArena* arena = gpu_arenas().owner_of(base); arena != nullptr && arena->device().has_other_users(taken_on_))
    runtime().device_wait();
  gpu_arenas().leave(base);
  stock->raw_delete(base);
}

void report(void* p, GpuArena& arena, std::int64_t size_B) {
  if (!c10::memoryProfilingEnabled()) return;
  const ArenaStatistics now = arena.device().slab().arena().statistics();
  c10::reportMemoryUsageToProfiler(
      p, size_B, static_cast<std::size_t>(now.in_use_B), static_cast<std::size_t>(now.capacity_B),
      c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(arena.device().index())));
}

void release(void* p) {
  GpuArena* arena = gpu_arenas().owner_of(p);
  if (arena == nullptr) {
    if (event_log().is_on()) event_log().released(p);
    stock_release(p);
    return;
  }
  if (c10::memoryProfilingEnabled()) {
    const Slab& slab = arena->device().slab();
    report(p, *arena, -static_cast<std::int64_t>(arena->device().slab().arena().size_of(slab.offset_of(p))));
  }
  arena->release(p);
}

[[noreturn]] C10_NOINLINE void refuse(GpuArena& arena, Bytes size_B) {
  C10_THROW_ERROR(OutOfMemoryError, arena.device().refusal(size_B));
}

// Pools of torch's to which streams allocate now: a capture's, or those that somebody has opened.
class Pools {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  void begin(int device, MempoolId_t id, Filter filter) {
    const std::lock_guard<std::mutex> hold(mutex_);
    open_.push_back({device, id, std::move(filter)});
    set(device);
  }
  void end(int device, MempoolId_t id) {
    const std::lock_guard<std::mutex> hold(mutex_);
    for (auto it = open_.begin(); it != open_.end(); ++it)
      if (it->device == device && it->id == id) {
        open_.erase(it);
        break;
      }
    set(device);
  }
  bool takes(int device, Stream stream) {
    if (count_.load(std::memory_order_acquire) == 0) return false;
    const std::lock_guard<std::mutex> hold(mutex_);
    for (const Open& pool : open_)
      if (pool.device == device && pool.filter(stream)) return true;
    return false;
  }

 private:
  struct Open {
    int device;
    MempoolId_t id;
    Filter filter;
  };

  void set(int device) {
    count_.store(open_.size(), std::memory_order_release);
    bool is_captured = false;
    for (const Open& pool : open_) is_captured = is_captured || pool.device == device;
    gpu_arenas().visit([=](GpuArena& arena) {
      if (arena.device().index() == device) arena.device().set_capturing(is_captured);
    });
  }

  std::mutex mutex_;
  std::vector<Open> open_;
  std::atomic<std::size_t> count_{0};
};

Pools& pools() {
  static Pools* const kept = new Pools;
  return *kept;
}

// A block of an arena, or null: ask torch.
void* serve(Bytes size_B, int device, Stream stream) {
  Thread& thread = Thread::mine();
  Slab* slab = thread.slab();
  const bool is_engaged = slab != nullptr;
  if (!is_engaged) {
    slab = slabs().for_workers();
    if (slab == nullptr) return nullptr;
    if (!slab->all_threads()) {
      slab->note_outside(size_B);
      return nullptr;
    }
  }
  GpuArena* arena = gpu_arenas().of(slab);
  if (arena == nullptr || arena->device().index() != device || pools().takes(device, stream)) return nullptr;
  void* p = is_engaged ? arena->device().allocate(size_B, stream) : arena->device().allocate_worker(size_B, stream);
  if (p == nullptr && slab->is_open()) {
    if (slab->is_strict() || (is_engaged && thread.run() != nullptr)) refuse(*arena, size_B);
    slab->note_spill(size_B);
  }
  if (p != nullptr) {
    arena->remember(p, stream);
    report(p, *arena, size_B);
  }
  return p;
}

bool is_a_size(std::size_t n) { return n != 0 && n <= static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()); }

// What other streams have finished with goes back, so that arenas which are closed already can.
void settle_closed() {
  gpu_arenas().visit([](GpuArena& arena) {
    if (!arena.device().slab().is_open()) arena.device().settle(false);
  });
}

c10::Device cuda(int device) { return c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(device)); }

// The deleter of torch's block becomes ours only for as long as somebody wants to hear of its release.
c10::DataPtr noted(c10::DataPtr block, std::size_t size) {
  if (event_log().is_on() && block.get() != nullptr && block.compare_exchange_deleter(stock_release, &release))
    event_log().allocated(block.get(), static_cast<std::int64_t>(size));
  return block;
}

class Tenant final : public torch_cuda::CUDAAllocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    const int device = c10::cuda::current_device();
    void* p = is_a_size(n) ? serve(static_cast<Bytes>(n), device, stream_of(device)) : nullptr;
    if (p != nullptr) return {p, p, &release, cuda(device)};
    return noted(stock->allocate(n), n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { stock->copy_data(to, from, n); }

  void* raw_alloc(std::size_t n) override {
    const int device = c10::cuda::current_device();
    void* p = is_a_size(n) ? serve(static_cast<Bytes>(n), device, stream_of(device)) : nullptr;
    return p != nullptr ? p : stock->raw_alloc(n);
  }
  void* raw_alloc_with_stream(std::size_t n, cudaStream_t stream) override {
    void* p = is_a_size(n) ? serve(static_cast<Bytes>(n), c10::cuda::current_device(), stream) : nullptr;
    return p != nullptr ? p : stock->raw_alloc_with_stream(n, stream);
  }
  void raw_delete(void* p) override {
    if (GpuArena* arena = gpu_arenas().owner_of(p)) return arena->release(p);
    stock->raw_delete(p);
  }

  using torch_cuda::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    void* p = block.get();
    if (GpuArena* arena = p == nullptr ? nullptr : gpu_arenas().owner_of(p)) return arena->device().used(p, stream.stream());
    if (block.get_deleter() != &release) return stock->recordStream(block, stream);
    c10::DataPtr as_torch_knows_it(p, p, stock_release, block.device());
    stock->recordStream(as_torch_knows_it, stream);
    as_torch_knows_it.release_context();
  }

  // The largest workspace that cuDNN may ask for.
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    Slab* slab = Thread::mine().slab();
    GpuArena* arena = slab == nullptr ? nullptr : gpu_arenas().of(slab);
    if (arena == nullptr || arena->device().index() != device) return stock->cacheInfo(device, largest);
    const auto hole = static_cast<std::size_t>(slab->arena().statistics().largest_hole_B);
    if (hole > *largest) *largest = hole;
  }

  // Shared with other processes is an arena's block, and where in it.
  void* getBaseAllocation(void* p, std::size_t* size) override {
    GpuArena* arena = gpu_arenas().owner_of(p);
    return stock->getBaseAllocation(arena == nullptr ? p : arena->device().slab().base(), size);
  }
  torch_cuda::ShareableHandle shareIpcHandle(void* p) override {
    GpuArena* arena = gpu_arenas().owner_of(p);
    if (arena == nullptr) return stock->shareIpcHandle(p);
    Slab& slab = arena->device().slab();
    torch_cuda::ShareableHandle handle = stock->shareIpcHandle(slab.base());
    handle.offset += static_cast<std::ptrdiff_t>(slab.offset_of(p));
    return handle;
  }

  void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
    pools().begin(device, id, filter);
    stock->beginAllocateToPool(device, id, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
    pools().end(device, id);
    stock->endAllocateToPool(device, id);
  }

  // All else is torch's.
  bool initialized() override { return stock->initialized(); }
  void init(int devices) override { stock->init(devices); }
  void enable(bool value) override { stock->enable(value); }
  bool isEnabled() const override { return stock->isEnabled(); }
  void emptyCache(MempoolId_t id) override {
    settle_closed();
    stock->emptyCache(id);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex d) override { return stock->getDeviceStats(d); }
  void resetAccumulatedStats(DeviceIndex d) override { stock->resetAccumulatedStats(d); }
  void resetPeakStats(DeviceIndex d) override { stock->resetPeakStats(d); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex d) override { return stock->getMemoryInfo(d); }
  double getMemoryFraction(DeviceIndex d) override { return stock->getMemoryFraction(d); }
  void setMemoryFraction(double fraction, DeviceIndex d) override { stock->setMemoryFraction(fraction, d); }
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex d) override {
    return stock->getExpandableSegmentSizes(d);
  }
  torch_cuda::SnapshotInfo snapshot(MempoolId_t id, bool traces) override { return stock->snapshot(id, traces); }
  void releasePool(DeviceIndex d, MempoolId_t id) override { stock->releasePool(d, id); }
  int getPoolUseCount(DeviceIndex d, MempoolId_t id) override { return stock->getPoolUseCount(d, id); }
  void createOrIncrefPool(DeviceIndex d, MempoolId_t id, std::shared_ptr<torch_cuda::CUDAAllocator> a) override {
    stock->createOrIncrefPool(d, id, std::move(a));
  }
  void setUseOnOOM(DeviceIndex d, MempoolId_t id, bool use) override { stock->setUseOnOOM(d, id, use); }
  void setNoSplit(DeviceIndex d, MempoolId_t id) override { stock->setNoSplit(d, id); }
  bool checkPoolLiveAllocations(DeviceIndex d, MempoolId_t id, const std::unordered_set<void*>& live) override {
    return stock->checkPoolLiveAllocations(d, id, live);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return stock->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return stock->isHistoryEnabled(); }
  void recordHistory(bool enabled, torch_cuda::CreateContextFn context, std::size_t entries, torch_cuda::RecordContext when,
                     bool clears, const std::vector<std::string>& skipped) override {
    stock->recordHistory(enabled, context, entries, when, clears, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& md) override { stock->recordAnnotation(md); }
  void pushCompileContext(std::string& md) override { stock->pushCompileContext(md); }
  void popCompileContext() override { stock->popCompileContext(); }
  void setUserMetadata(const std::string& text) override { stock->setUserMetadata(text); }
  std::string getUserMetadata() override { return stock->getUserMetadata(); }
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver o) override {
    stock->attachOutOfMemoryObserver(std::move(o));
  }
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker t) override {
    stock->attachAllocatorTraceTracker(std::move(t));
  }
  void enablePeerAccess(DeviceIndex from, DeviceIndex to) override { stock->enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t n, cudaStream_t stream,
                          bool p2p) override {
    return stock->memcpyAsync(to, to_device, from, from_device, n, stream, p2p);
  }
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(DeviceIndex d, MempoolId_t id) override {
    return stock->getCheckpointState(d, id);
  }
  torch_cuda::CheckpointDelta setCheckpointPoolState(DeviceIndex d, std::shared_ptr<torch_cuda::AllocatorState> s) override {
    return stock->setCheckpointPoolState(d, std::move(s));
  }
  std::string name() override { return stock->name(); }
#if LOWTIDE_TORCH_OBSERVES_REJECTIONS  // 2.12
  void attachOomRejectionObserver(torch_cuda::OomRejectionObserver o) override {
    stock->attachOomRejectionObserver(std::move(o));
  }
#endif
#if LOWTIDE_TORCH_TELLS_CONTEXTS  // 2.12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override {
    return gpu_arenas().owner_of(p) == nullptr ? stock->getContextForPointer(p) : nullptr;
  }
#endif
#if LOWTIDE_TORCH_MARKS_CAPTURES  // 2.13
  void markCaptureBegin(DeviceIndex d) override { stock->markCaptureBegin(d); }
  void markCaptureEnd(DeviceIndex d) override { stock->markCaptureEnd(d); }
#endif
#if LOWTIDE_TORCH_PLACES  // 2.13
  c10::DataPtr allocateWithAddress(std::size_t n, void* p) override { return stock->allocateWithAddress(n, p); }
#endif
#if LOWTIDE_TORCH_ANNOTATES  // 2.14
  bool supportsUserMetadata() override { return stock->supportsUserMetadata(); }
  void annotateMemory(const void* p, const std::string& text) override {
    if (gpu_arenas().owner_of(p) == nullptr) stock->annotateMemory(p, text);
  }
#endif
};

Tenant& mine() {
  static Tenant* const kept = new Tenant;  // never destroyed: torch keeps the pointer
  return *kept;
}

// A child must not inherit a lock that a thread holds which it does not have.
void before_fork() {
  gpu_arenas().visit([](GpuArena& arena) { arena.before_fork(); });
  devices().before_fork();
}

void after_fork(bool child) {
  devices().after_fork(child);
  gpu_arenas().visit([](GpuArena& arena) { arena.after_fork(); });
}

}  // namespace

void install_tenant() {
  if (stock != nullptr) return;
  torch_cuda::CUDAAllocator* const found = torch_cuda::allocator.load();
  if (found == nullptr) throw std::runtime_error("torch has no CUDA allocator in this process: there is no GPU here");
  if (found->raw_deleter() == nullptr)
    throw std::runtime_error("another library's CUDA allocator is installed, which cannot be built upon");
  stock = found;
  stock_release = found->raw_deleter();
  ::pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  torch_cuda::allocator.store(&mine());
}

bool tenant_is_active() { return stock != nullptr && torch_cuda::allocator.load() == &mine(); }

std::unique_ptr<Handle> open_arena(const Slab::Options& options, int device) {
  settle_closed();
  auto arena = std::make_unique<GpuArena>(options, device, stream_of(device));
  auto handle = std::make_unique<Handle>(arena->device().slab(), false);
  gpu_arenas().enter(arena.get());
  arena.release();
  return handle;
}

Device* device_of(const Slab& slab) {
  GpuArena* arena = gpu_arenas().of(&slab);
  return arena == nullptr ? nullptr : &arena->device();
}

c10::DeviceType device_type() { return c10::DeviceType::CUDA; }
const char* device_words() { return "GPU"; }
c10::Allocator* torch_allocator() { return torch_cuda::allocator.load(); }

c10::DataPtr allocate(std::size_t size) { return mine().allocate(size); }

c10::DataPtr allocate_outside(std::size_t size, c10::Device device) {
  const OnDevice here(device.index());
  return noted(stock->allocate(size), size);
}

void* take_place(Slab& slab, Bytes where_B, Bytes size_B) {
  GpuArena* arena = gpu_arenas().of(&slab);
  if (arena == nullptr) return nullptr;
  const Stream stream = stream_of(arena->device().index());
  void* p = arena->device().place(where_B, size_B, stream);
  if (p != nullptr) arena->remember(p, stream);
  return p;
}

c10::DataPtr adopt(void* p, Bytes size_B) {
  GpuArena& arena = *gpu_arenas().owner_of(p);
  report(p, arena, size_B);
  return {p, p, &release, cuda(arena.device().index())};
}

bool is_plain(const c10::DataPtr& data) {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  return (deleter == &release || deleter == stock_release) && data.get() == data.get_context();
}

void copy_bytes(void* to, const void* from, std::size_t size) {
  GpuArena* arena = gpu_arenas().owner_of(to);
  if (arena == nullptr) arena = gpu_arenas().owner_of(from);
  const int device = arena == nullptr ? c10::cuda::current_device() : arena->device().index();
  const OnDevice here(device);
  runtime().device_wait();
  const cudaError_t status = stock->memcpyAsync(to, device, from, device, size, stream_of(device), true);
  const Runtime::Status waited = runtime().device_wait();
  if (static_cast<int>(status) != Runtime::OK || waited != Runtime::OK)
    throw std::runtime_error("lowtide: " + failure("a copy within the GPU", status != cudaSuccess ? status : waited));
}

}  // namespace lowtide::shim
