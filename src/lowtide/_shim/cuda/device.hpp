// Device: a slab of a GPU's memory as torch asks for it, and the order of the streams that use it.
//
// Devices below has one for each GPU of a process whose whole memory is an arena (lowtide.install_cuda); cuda_tenant/
// has one for each arena inside torch's own allocator.
// The slab is reserved whole and never touched by the processor. It is the hard limit: a request that does not fit is
// refused, after the parked blocks have been waited for.
// A request of a thread that runs a segment takes its planned place; everybody else's is served by best fit. Engagement
// (thread.hpp) decides nothing here but whether a segment may be entered: every thread is served from its device's
// slab.
// Streams: a released block is reusable at once where its own stream is concerned; another stream is told to wait
// (stream_order.hpp); while a third one still uses it, it is parked (parking.hpp).
// Not for CUDA graphs: a captured stream replays its addresses later, when they may be somebody else's. entries.cpp
// refuses the pools that a capture asks for, the tenant leaves them to torch. While anything is captured no event is
// asked and nobody waits, which CUDA forbids then: parked blocks stay parked.
//
// THREADS. Every member may be called from any thread: one mutex guards all that is not the slab's.
#pragma once
#include <atomic>
#include <mutex>
#include <string>

#include "events.hpp"
#include "parking.hpp"
#include "slab.hpp"
#include "stream_order.hpp"

namespace lowtide::shim {

// How often and how much, as torch counts: now, most at once, and in sum. Bytes are those reserved for a block.
struct Count {
  std::int64_t current = 0, peak = 0, gained = 0, lost = 0;

  void add(std::int64_t by) {
    current += by;
    gained += by;
    if (current > peak) peak = current;
  }
  void subtract(std::int64_t by) {
    current -= by;
    lost += by;
  }
};

struct DeviceCounts {
  Count blocks, bytes, requested;      // those that torch holds
  Count active, active_bytes;          // and those that are parked
  std::int64_t waits = 0;              // streams that were told to wait for another
  std::int64_t retries = 0;            // requests that waited for parked blocks
  std::int64_t refusals = 0;
};

class Device {
 public:
  static constexpr Bytes ALIGNMENT_B = 512;

  struct Budget {
    Bytes size_B;        // 0: the share
    double share;        // of the device's memory
    Bytes small_zone_B;
  };

  // With a slab of its own on the device's memory. Throws std::runtime_error where the device does not have it.
  Device(int index, const Budget& budget);
  Device(int index, Slab& slab);

  // A block, or nullptr: see refusal().
  void* allocate(Bytes size_B, Stream stream);
  void* allocate_worker(Bytes size_B, Stream stream);
  // At an offset, or GENERAL or PERSISTENT (torch_memory.hpp).
  void* place(Bytes where_B, Bytes size_B, Stream stream);
  void release(void* p, Stream stream);
  void used(void* p, Stream stream);
  std::string refusal(Bytes size_B);

  int index() const { return index_; }
  Slab& slab() { return *slab_; }
  DeviceCounts counts();
  void reset_peaks();
  void reset_sums();
  // Releases what nobody uses any more; with `wait`, waits for everybody.
  void settle(bool wait);
  std::size_t parked();
  void set_capturing(bool is_capturing) { is_capturing_.store(is_capturing); }
  // Whether a stream other than this one has used the slab. For when nobody uses it any more.
  bool has_other_users(Stream stream) const { return order_.has_others(stream); }

  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  using Guard = std::lock_guard<std::mutex>;

  template <class Serve>
  void* served(Bytes size_B, Stream stream, const Serve& serve);
  void give_back(void* p, Stream stream);
  void reap(bool wait);
  Bytes end_of(void* p, Bytes size_B) const;

  const int index_;
  Slab* slab_;
  std::atomic<bool> is_capturing_{false};
  std::mutex mutex_;
  Events events_;
  Parking parking_{events_};
  StreamOrder order_;
  DeviceCounts counts_;
};

// The devices of this process. A device comes to life with its first request.
class Devices {
 public:
  static constexpr int MOST = 64;

  // For devices that have not come to life yet; device -1: for all that have none of their own.
  // Throws std::invalid_argument, or std::logic_error where the device lives already.
  void set_budget(int device, const Device::Budget& budget);
  bool has_budget(int device);
  // Throws std::runtime_error, std::invalid_argument.
  Device& at(int device);
  // nullptr: not alive yet.
  Device* alive(int device);
  Device* owner_of(const void* p);

  void before_fork();
  void after_fork(bool child);
};

Devices& devices();

}  // namespace lowtide::shim
