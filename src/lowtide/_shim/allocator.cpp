#include "allocator.hpp"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <cstring>
#include <limits>
#include <stdexcept>

#include "event_log.hpp"
#include "names.hpp"
#include "slabs.hpp"
#include "thread.hpp"

// From libtorch_cpu; ATen/Parallel.h would bring in half of torch.
namespace at {
bool in_parallel_region();
int get_thread_num();
}  // namespace at

namespace lowtide::shim {

namespace {

c10::Allocator* stock = nullptr;
c10::DeleterFnPtr stock_release = nullptr;

void release(void* p) {
  if (event_log().is_on()) event_log().released(p);
  Slab* slab = slabs().owner_of(p);
  if (slab == nullptr) {
    stock_release(p);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(p);
  slab->release(p);
}

[[noreturn]] C10_NOINLINE void refuse(Slab& slab, Bytes size_B, const Run* run, bool worker) {
  c10::profiledCPUMemoryReporter().OutOfMemory(static_cast<std::size_t>(size_B));
  C10_THROW_ERROR(OutOfMemoryError, slab.refusal(size_B, run, worker));
}

// The slab for a thread that chose none, or null.
Slab* slab_for_others(Bytes size_B) {
  Slab* slab = slabs().for_workers();
  if (slab == nullptr || slab->all_threads()) return slab;
  if (at::in_parallel_region() && at::get_thread_num() != 0) return slab;
  slab->note_outside(size_B);
  return nullptr;
}

// A block of a slab, or null: ask the stock allocator.
void* serve(Bytes size_B) {
  Thread& thread = Thread::mine();
  if (Slab* slab = thread.slab()) {
    void* p = slab->serve(size_B, thread.run());
    if (p == nullptr && slab->is_open()) {
      if (slab->is_strict() || thread.run() != nullptr) refuse(*slab, size_B, thread.run(), false);
      slab->note_spill(size_B);
    }
    return p;
  }
  Slab* slab = slab_for_others(size_B);
  if (slab == nullptr) return nullptr;
  void* p = slab->serve_worker(size_B);
  if (p == nullptr && slab->is_open()) refuse(*slab, size_B, nullptr, true);
  return p;
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    // A negative size has become a huge one; the stock allocator says so.
    const bool is_ours = n != 0 && n <= static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
    void* p = is_ours ? serve(static_cast<Bytes>(n)) : nullptr;
    return p != nullptr ? adopt(p, static_cast<Bytes>(n)) : allocate_outside(n, c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }
};

Allocator& mine() {
  static Allocator* const kept = new Allocator;  // never destroyed: torch keeps the pointer
  return *kept;
}

// A child must not inherit a lock that a thread holds which it does not have.
void before_fork() {
  slabs().before_fork();
  event_log().before_fork();
  lock_names();
}

void after_fork(bool child) {
  unlock_names();
  event_log().after_fork(child);
  slabs().after_fork(child);
  if (child) Thread::mine().forget_everything();
}

}  // namespace

void install() {
  if (stock != nullptr) return;
  c10::Allocator* const found = c10::GetAllocator(c10::DeviceType::CPU);
  if (found->raw_deleter() == nullptr)
    throw std::runtime_error("another library's CPU allocator is installed, which cannot be built upon");
  stock = found;
  stock_release = found->raw_deleter();
  c10::SetAllocator(c10::DeviceType::CPU, &mine(), 1);
  if (!is_in_force()) {
    stock = nullptr;
    throw std::runtime_error("another library's CPU allocator is installed with a higher priority");
  }
  ::pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });
}

bool is_installed() { return stock != nullptr; }

bool is_in_force() { return c10::GetAllocator(c10::DeviceType::CPU) == &mine(); }

c10::DeviceType device_type() { return c10::DeviceType::CPU; }
const char* device_words() { return "CPU"; }
c10::Allocator* torch_allocator() { return c10::GetAllocator(c10::DeviceType::CPU); }

c10::DataPtr allocate(std::size_t size) { return mine().allocate(size); }

void* take_place(Slab& slab, Bytes where_B, Bytes size_B) { return slab.serve_place(where_B, size_B); }

void copy_bytes(void* to, const void* from, std::size_t size) { std::memcpy(to, from, size); }

c10::DataPtr allocate_outside(std::size_t size, c10::Device) {
  void* p = stock->raw_allocate(size);
  if (p != nullptr && event_log().is_on()) event_log().allocated(p, static_cast<std::int64_t>(size));
  return {p, p, &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DataPtr adopt(void* p, Bytes size_B) {
  c10::profiledCPUMemoryReporter().New(p, static_cast<std::size_t>(size_B));
  if (event_log().is_on()) event_log().allocated(p, size_B);
  return {p, p, &release, c10::Device(c10::DeviceType::CPU)};
}

bool is_plain(const c10::DataPtr& data) {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  return (deleter == &release || deleter == stock_release) && data.get() == data.get_context();
}

}  // namespace lowtide::shim
