// A copy engine: one thread that copies bytes from address to address, job after job, no faster than its link.
//
// An Event is something that has not happened yet: the end of a copy, or whatever somebody calls `set` for. A job may
// wait for events of other engines. Whoever submits a job keeps both ends alive until its event has happened; `drain`
// waits for all of them. A link has a rate and a latency: a job of n bytes takes latency + n / rate at least, measured
// from when the engine begins it. Rate 0 is a link as fast as the machine copies.
//
// The thread begins with the first job. A process that was forked has none of its parent's threads: there the engine
// begins anew, with nothing to do, and what the parent submitted never happens.
//
// INVARIANT: jobs begin and end in the order in which they were submitted, and `idle` holds exactly when every
// submitted job has ended or was dropped by `stop`.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace lowtide {

using Clock = std::chrono::steady_clock;

class Event {
 public:
  Event();
  void set();
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  // Waits so long at most; returns is_set(). Throws std::runtime_error in a forked child, where it never happens.
  bool wait_for(std::chrono::duration<double> most) const;

 private:
  std::atomic<bool> set_{false};
  std::int64_t process_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

using EventRef = std::shared_ptr<Event>;

// What an engine did so far. `busy_s` is time from the beginning to the end of jobs, what they wait for left out.
struct Traffic {
  std::int64_t jobs = 0, bytes = 0;
  double busy_s = 0.0;
};

class Copier {
 public:
  // Throws std::invalid_argument where the rate or the latency is negative or not finite.
  explicit Copier(double rate_Bps = 0.0, double latency_s = 0.0);
  ~Copier();  // stop()
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // O(1). Throws std::system_error if the machine refuses the thread; then nothing was submitted.
  EventRef submit(void* target, const void* source, std::size_t size_B, std::vector<EventRef> after);
  bool idle() const;
  void drain();  // waits until idle; returns at once in a forked child
  void stop();   // drops what has not begun, ends what has at its next chunk, and the thread; `submit` begins anew
  Traffic traffic() const;
  double rate_Bps() const { return rate_Bps_; }

 private:
  struct Job {
    std::byte* target;
    const std::byte* source;
    std::size_t size_B;
    std::vector<EventRef> after;
    EventRef done;
  };
  // All that the thread sees. A forked child leaves its parent's alone: its mutex may be held by nobody who is there.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;  // jobs came, jobs ended, or the end is wanted
    std::deque<Job> jobs;             // the first one is running
    bool stopping = false;
    Traffic traffic;
    std::thread thread;
    Clock::time_point free{};         // when the link can begin the next job; the thread's own
  };

  State& here() const;
  static void serve(State& state, double rate_Bps, double latency_s);
  static bool await(State& state, const Job& job);
  static bool carry(State& state, const Job& job, double rate_Bps, double latency_s, double& busy_s);

  double rate_Bps_, latency_s_;
  mutable std::int64_t process_;
  mutable std::unique_ptr<State> state_;
};

}  // namespace lowtide
