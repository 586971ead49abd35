#include "events.hpp"

namespace lowtide::shim {

Event Events::behind(Stream stream) {
  Event event = nullptr;
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
  } else if (runtime().make_event(&event, Runtime::NO_TIMING) != Runtime::OK) {
    runtime().forget_error();
    return nullptr;
  }
  if (runtime().record(event, stream) == Runtime::OK) return event;
  runtime().forget_error();
  put_back(event);
  return nullptr;
}

void Events::order(Stream later, Stream earlier) {
  const Event event = behind(earlier);
  const bool is_ordered = event != nullptr && runtime().stream_wait(later, event, 0) == Runtime::OK;
  if (event != nullptr) put_back(event);
  if (is_ordered) return;
  runtime().forget_error();
  runtime().device_wait();
}

}  // namespace lowtide::shim
