// Events: the marks that one device's streams leave for others, used again and again.
//
// An event stands for everything that its stream had been given when it was recorded. A stream that has been told to
// wait for it keeps that meaning even if the event is recorded anew, so it may be put back at once.
// Not thread-safe: the device's mutex is held. Everything here expects the device to be the current one.
#pragma once
#include <vector>

#include "runtime.hpp"

namespace lowtide::shim {

class Events {
 public:
  // An event behind everything that the stream has been given, or null: the runtime could not.
  Event behind(Stream stream);
  void put_back(Event event) { idle_.push_back(event); }
  // What is issued to `later` from now on comes after what `earlier` has been given. Where the runtime cannot, the
  // calling thread waits for the whole device.
  void order(Stream later, Stream earlier);

 private:
  std::vector<Event> idle_;
};

}  // namespace lowtide::shim
