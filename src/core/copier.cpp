#include "copier.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace lowtide {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t CHUNK_B = std::size_t{1} << 20;
constexpr Seconds GLANCE{0.02};   // how long a wait goes on before it looks whether it still makes sense
constexpr Seconds DOZE{5e-5};     // a sleep is not shorter: being woken takes as long

std::int64_t this_process() { return static_cast<std::int64_t>(getpid()); }

Clock::duration in_ticks(Seconds time) { return std::chrono::duration_cast<Clock::duration>(time); }

}  // namespace

Event::Event() : process_(this_process()) {}

void Event::set() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    set_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

bool Event::wait_for(Seconds most) const {
  if (is_set()) return true;
  if (process_ != this_process()) throw std::runtime_error("a copy of the parent process does not go on in a forked child");
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, in_ticks(most), [this] { return is_set(); });
}

Copier::Copier(double rate_Bps, double latency_s)
    : rate_Bps_(rate_Bps), latency_s_(latency_s), process_(this_process()), state_(std::make_unique<State>()) {
  if (!std::isfinite(rate_Bps) || !std::isfinite(latency_s) || rate_Bps < 0.0 || latency_s < 0.0) {
    throw std::invalid_argument("a link has a rate and a latency that are finite and not negative");
  }
}

Copier::~Copier() { stop(); }

Copier::State& Copier::here() const {
  if (process_ != this_process()) {
    state_.release();  // never freed: a thread that is not here may hold its mutex
    state_ = std::make_unique<State>();
    process_ = this_process();
  }
  return *state_;
}

EventRef Copier::submit(void* target, const void* source, std::size_t size_B, std::vector<EventRef> after) {
  State& state = here();
  EventRef done = std::make_shared<Event>();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (!state.thread.joinable()) {
    state.stopping = false;
    state.thread = std::thread([this_state = &state, rate = rate_Bps_, latency = latency_s_] {
      serve(*this_state, rate, latency);
    });
  }
  state.jobs.push_back(
      {static_cast<std::byte*>(target), static_cast<const std::byte*>(source), size_B, std::move(after), done});
  state.changed.notify_all();
  return done;
}

bool Copier::idle() const {
  State& state = here();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.jobs.empty();
}

void Copier::drain() {
  State& state = here();
  std::unique_lock<std::mutex> lock(state.mutex);
  state.changed.wait(lock, [&state] { return state.jobs.empty(); });
}

void Copier::stop() {
  State& state = here();
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.stopping = true;
    thread = std::move(state.thread);
  }
  state.changed.notify_all();
  if (thread.joinable()) thread.join();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.jobs.clear();
  state.changed.notify_all();
}

Traffic Copier::traffic() const {
  State& state = here();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.traffic;
}

void Copier::serve(State& state, double rate_Bps, double latency_s) {
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(state.mutex);
      state.changed.wait(lock, [&state] { return state.stopping || !state.jobs.empty(); });
      if (state.stopping) return;
      job = state.jobs.front();  // remains in the queue until it has ended: `drain` waits for it
    }
    double busy_s = 0.0;
    if (!await(state, job) || !carry(state, job, rate_Bps, latency_s, busy_s)) return;
    job.done->set();
    {
      const std::lock_guard<std::mutex> lock(state.mutex);
      state.traffic.jobs += 1;
      state.traffic.bytes += static_cast<std::int64_t>(job.size_B);
      state.traffic.busy_s += busy_s;
      state.jobs.pop_front();
    }
    state.changed.notify_all();
  }
}

// Whether all that the job waits for has happened; false where the end is wanted before.
bool Copier::await(State& state, const Job& job) {
  for (const EventRef& event : job.after) {
    while (!event->wait_for(GLANCE)) {
      const std::lock_guard<std::mutex> lock(state.mutex);
      if (state.stopping) return false;
    }
  }
  return true;
}

// Copies chunk by chunk, and sleeps where the link would not be as far yet. False where the end is wanted before. What
// is too short a time to sleep is owed by the next job: the link is free again when it would be.
bool Copier::carry(State& state, const Job& job, double rate_Bps, double latency_s, double& busy_s) {
  const Clock::time_point start = std::max(Clock::now(), state.free);
  std::size_t done_B = 0;
  bool wanted = true;
  for (bool first = true; wanted && (first || done_B < job.size_B); first = false) {
    const std::size_t chunk_B = std::min(CHUNK_B, job.size_B - done_B);
    if (chunk_B > 0) std::memcpy(job.target + done_B, job.source + done_B, chunk_B);
    done_B += chunk_B;
    const Seconds due{latency_s + (rate_Bps > 0.0 ? static_cast<double>(done_B) / rate_Bps : 0.0)};
    std::unique_lock<std::mutex> lock(state.mutex);
    wanted = !state.stopping;
    if (wanted && due - Seconds(Clock::now() - start) > DOZE) {
      wanted = !state.changed.wait_until(lock, start + in_ticks(due), [&state] { return state.stopping; });
    }
  }
  const Seconds whole{latency_s + (rate_Bps > 0.0 ? static_cast<double>(job.size_B) / rate_Bps : 0.0)};
  state.free = std::max(Clock::now(), start + in_ticks(whole));
  busy_s = Seconds(state.free - start).count();
  return wanted;
}

}  // namespace lowtide
