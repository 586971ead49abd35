#include "parking.hpp"

#include <algorithm>

namespace lowtide::shim {

void Parking::used(void* p, Stream stream) {
  std::vector<Stream>& streams = users_[p];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

bool Parking::park(void* p, Stream owner) {
  const auto found = users_.find(p);
  if (found == users_.end()) return false;
  Car car{p, owner, {}};
  for (Stream stream : found->second) {
    if (stream == owner) continue;
    const Event event = events_.behind(stream);
    if (event != nullptr) {
      car.events.push_back(event);
    } else {
      runtime().device_wait();  // the runtime has no event: nothing is left to wait for afterwards
    }
  }
  users_.erase(found);
  if (car.events.empty()) return false;
  parked_.push_back(std::move(car));
  return true;
}

// An error other than "not ready" means that the device is lost: nothing runs on it any more.
bool Parking::is_done(Car& car, bool wait) {
  while (!car.events.empty()) {
    const Event event = car.events.back();
    const Runtime::Status status = wait ? runtime().wait(event) : runtime().query(event);
    if (status != Runtime::OK) runtime().forget_error();
    if (status == Runtime::NOT_READY) return false;
    car.events.pop_back();
    events_.put_back(event);
  }
  return true;
}

std::vector<Parking::Car> Parking::leaving(bool wait) {
  std::vector<Car> gone;
  auto kept = parked_.begin();
  for (Car& car : parked_) {
    if (is_done(car, wait)) {
      gone.push_back(std::move(car));
    } else {
      if (&*kept != &car) *kept = std::move(car);
      ++kept;
    }
  }
  parked_.erase(kept, parked_.end());
  return gone;
}

}  // namespace lowtide::shim
