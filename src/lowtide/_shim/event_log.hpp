// EventLog: what every thread allocates and releases while the log is on, from arenas and from torch's own allocator.
//
// ORDER. An allocation is noted after its address is known, a release before its address can be given out again, both
// under one lock: so at any place in the log each address is held by at most one block.
// A release of a block that was allocated while the log was off is no event.
// While the log is off, the allocator reads one flag per call.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace lowtide::shim {

struct LoggedEvent {
  std::int64_t thread;   // as the system numbers it
  std::int64_t address;
  std::int64_t size;     // bytes; negative: a release
};

class EventLog {
 public:
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  bool start();                     // false: it is on already
  std::vector<LoggedEvent> stop();        // in order; empties the log
  void allocated(const void* p, std::int64_t size);
  void released(const void* p);

  void before_fork() { mutex_.lock(); }
  void after_fork(bool child);      // off in the child

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<LoggedEvent> events_;
  std::unordered_map<const void*, std::int64_t> live_;  // address -> size
};

EventLog& event_log();

}  // namespace lowtide::shim
