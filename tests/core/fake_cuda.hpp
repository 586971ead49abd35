// A simulated GPU: streams are queues of numbered work that ends when the test says so, events are places in queues, and
// memory is addresses that fault when they are touched, or, where a test asks for it, pages of the host.
//
// Every piece of work knows what it comes after: the work of its own stream, what its stream was told to wait for, and
// whatever had ended when it was issued. So a test can ask whether one use of a byte surely comes after another.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "cuda/runtime.hpp"

namespace fake {

using lowtide::shim::Event;
using lowtide::shim::Stream;
using Clock = std::map<Stream, std::int64_t>;  // per stream, how much of its work comes before
constexpr int OK = 0, INVALID = 1, NO_MEMORY = 2, LOST = 719, NOT_READY = 600, CAPTURED = 900;

struct Mark {
  Clock after;
};

struct Gpu {
  std::mutex mutex;
  std::size_t total = std::size_t{1} << 30, used = 0;
  std::map<void*, std::size_t> reserved;
  std::map<Stream, std::int64_t> issued, done;
  std::map<Stream, Clock> known;  // what the stream's next work comes after
  std::set<Mark*> marks;
  int device = 0, records = 0, waits_by_streams = 0, waits_by_threads = 0;
  bool is_lost = false, refuses_events = false, is_touchable = false, is_captured = false;
};

inline Gpu& gpu() {
  static Gpu* const one = new Gpu;
  return *one;
}

inline Stream stream(std::uintptr_t number) { return reinterpret_cast<Stream>(number); }

inline void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, count] : other)
    if (clock[stream] < count) clock[stream] = count;
}

// One more piece of work on a stream; its number, from 1.
inline std::int64_t issue(Stream stream) {
  const std::lock_guard<std::mutex> hold(gpu().mutex);
  return gpu().known[stream][stream] = ++gpu().issued[stream];
}

// Everything on a stream, with what it waits for, has ended.
inline void finish(Stream stream) {
  const std::lock_guard<std::mutex> hold(gpu().mutex);
  join(gpu().done, gpu().known[stream]);
}

// Whether work that is issued to `stream` now comes after piece `number` of `other`.
inline bool comes_after(Stream stream, Stream other, std::int64_t number) {
  const std::lock_guard<std::mutex> hold(gpu().mutex);
  return gpu().known[stream][other] >= number || gpu().done[other] >= number;
}

inline void reset() {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  g.known.clear();
  g.issued.clear();
  g.done.clear();
  g.records = g.waits_by_streams = g.waits_by_threads = 0;
  g.is_lost = g.refuses_events = g.is_captured = false;
}

inline int get_device(int* device) { return *device = gpu().device, OK; }
inline int set_device(int device) { return gpu().device = device, OK; }

inline int reserve(void** p, std::size_t size) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.used + size > g.total) return NO_MEMORY;
  const int rights = g.is_touchable ? PROT_READ | PROT_WRITE : PROT_NONE;
  *p = ::mmap(nullptr, size, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  g.reserved[*p] = size;
  g.used += size;
  return OK;
}

inline int give_back(void* p) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  const auto found = g.reserved.find(p);
  if (found == g.reserved.end()) return INVALID;
  ::munmap(p, found->second);
  g.used -= found->second;
  g.reserved.erase(found);
  return OK;
}

inline int memory(std::size_t* free, std::size_t* total) {
  const std::lock_guard<std::mutex> hold(gpu().mutex);
  *total = gpu().total;
  *free = gpu().total - gpu().used;
  return OK;
}

inline int make_event(Event* event, unsigned) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.refuses_events) return NO_MEMORY;
  auto* mark = new Mark;
  g.marks.insert(mark);
  *event = reinterpret_cast<Event>(mark);
  return OK;
}

inline Mark* mark_of(Event event) { return reinterpret_cast<Mark*>(event); }

inline int record(Event event, Stream stream) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.is_lost) return LOST;
  ++g.records;
  mark_of(event)->after = g.known[stream];
  return OK;
}

inline int query(Event event) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.is_captured) return CAPTURED;
  if (g.is_lost) return LOST;
  for (const auto& [stream, count] : mark_of(event)->after)
    if (g.done[stream] < count) return NOT_READY;
  return OK;
}

inline int wait(Event event) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.is_captured) return CAPTURED;
  if (g.is_lost) return LOST;
  ++g.waits_by_threads;
  join(g.done, mark_of(event)->after);
  return OK;
}

inline int stream_wait(Stream stream, Event event, unsigned) {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.is_lost) return LOST;
  ++g.waits_by_streams;
  join(g.known[stream], mark_of(event)->after);
  return OK;
}

inline int device_wait() {
  Gpu& g = gpu();
  const std::lock_guard<std::mutex> hold(g.mutex);
  if (g.is_captured) return CAPTURED;
  if (g.is_lost) return LOST;
  ++g.waits_by_threads;
  join(g.done, g.issued);
  return OK;
}

inline int forget_error() { return OK; }

inline const char* text(int status) {
  return status == NO_MEMORY ? "out of memory" : status == LOST ? "unspecified launch failure" : "error";
}

inline lowtide::shim::Runtime runtime() {
  return {get_device, set_device, reserve, give_back,   memory,      make_event,   record,
          query,      wait,       stream_wait, device_wait, forget_error, text};
}

}  // namespace fake
