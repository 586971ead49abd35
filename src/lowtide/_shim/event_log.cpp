#include "event_log.hpp"

#include <sys/syscall.h>
#include <unistd.h>

namespace lowtide::shim {

namespace {

std::int64_t this_thread() {
  thread_local const std::int64_t id = static_cast<std::int64_t>(::syscall(SYS_gettid));
  return id;
}

std::int64_t address_of(const void* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); }

}  // namespace

bool EventLog::start() {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (on_) return false;
  events_.clear();
  live_.clear();
  on_ = true;
  return true;
}

std::vector<LoggedEvent> EventLog::stop() {
  const std::lock_guard<std::mutex> hold(mutex_);
  on_ = false;
  live_.clear();
  return std::move(events_);
}

void EventLog::allocated(const void* p, std::int64_t size) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (!on_) return;
  events_.push_back({this_thread(), address_of(p), size});
  live_[p] = size;
}

void EventLog::released(const void* p) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto found = live_.find(p);
  if (!on_ || found == live_.end()) return;
  events_.push_back({this_thread(), address_of(p), -found->second});
  live_.erase(found);
}

void EventLog::after_fork(bool child) {
  if (child) {
    on_ = false;
    events_.clear();
    live_.clear();
  }
  mutex_.unlock();
}

EventLog& event_log() {
  static EventLog* const kept = new EventLog;  // never destroyed: see names.cpp
  return *kept;
}

}  // namespace lowtide::shim
