// Parking: blocks that were released while streams other than their own may still use them.
//
// torch tells which other streams use a block (record_stream). When it is released there is an event behind the work of
// each, and the block's bytes are taken until all of them have come to pass.
// INVARIANT: a block is in `users` only while it is in use, in `parked` only after its release, never in both.
// Not thread-safe: the device's mutex is held. Everything here expects the device to be the current one.
#pragma once
#include <unordered_map>
#include <vector>

#include "events.hpp"

namespace lowtide::shim {

class Parking {
 public:
  struct Car {
    void* p;
    Stream owner;
    std::vector<Event> events;
  };

  explicit Parking(Events& events) : events_(events) {}

  // `stream`, which is not the block's own, uses it.
  void used(void* p, Stream stream);
  // The block is released. Whether it is parked; if not, its own stream's order is all that counts.
  bool park(void* p, Stream owner);
  // Those that nobody uses any more, taken out; with `wait`, after waiting for all.
  std::vector<Car> leaving(bool wait);
  std::size_t size() const { return parked_.size(); }

 private:
  bool is_done(Car& car, bool wait);

  Events& events_;
  std::unordered_map<void*, std::vector<Stream>> users_;
  std::vector<Car> parked_;
};

}  // namespace lowtide::shim
