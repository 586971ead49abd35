// What a slab that keeps values does beyond serving: whose block is whose, who died, and who frees bytes.
#include "slab.hpp"

#include <algorithm>
#include <utility>

namespace lowtide::shim {

Bytes Slab::place_value(Bytes size_B) {
  const End end = size_B < LITTLE_B ? End::high : side_.load(std::memory_order_relaxed);
  Bytes offset_B = size_B <= NUMBER_B ? arena_->allocate(size_B, small_lo(), options_.capacity_B, end, 0)
                                      : arena_->allocate(size_B, 0, persistent_lo(), end, 0);
  if (offset_B == NOWHERE) offset_B = arena_->allocate(size_B, 0, options_.capacity_B, end, 0);
  if (offset_B != NOWHERE && size_B >= SMALL_B && meters_.load(std::memory_order_relaxed)) note_served(offset_B, size_B);
  return offset_B;
}

void Slab::meter() {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  live_.clear();
  most_.clear();
  live_B_ = most_B_ = 0;
  meters_.store(true, std::memory_order_relaxed);
}

std::vector<Bytes> Slab::metered() {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  meters_.store(false, std::memory_order_relaxed);
  note_most();
  return std::exchange(most_, {});
}

void Slab::note_served(Bytes offset_B, Bytes size_B) {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  live_.push_back({offset_B, size_B});
  live_B_ += size_B;
}

void Slab::note_released(Bytes offset_B) {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  const auto found =
      std::find_if(live_.begin(), live_.end(), [&](const Metered& block) { return block.offset_B == offset_B; });
  if (found == live_.end()) return;
  note_most();
  live_B_ -= found->size_B;
  live_.erase(found);
}

// Just before they become fewer, and at the end.
void Slab::note_most() {
  if (live_B_ <= most_B_) return;
  most_B_ = live_B_;
  most_.clear();
  for (const Metered& block : live_) most_.push_back(block.size_B);
}

bool Slab::own(const void* p, std::uint64_t value) {
  return options_.values && owns(p) && arena_->set_tag(offset_of(p), value);
}

std::uint64_t Slab::owner_at(const void* p) const {
  Block block{};
  return options_.values && owns(p) && arena_->find(offset_of(p), block) ? block.tag : 0;
}

void Slab::report_death(std::uint64_t value) {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  deaths_.push_back(value);
  has_deaths_.store(true, std::memory_order_release);
}

std::vector<std::uint64_t> Slab::take_deaths() {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  std::vector<std::uint64_t> taken;
  taken.swap(deaths_);
  has_deaths_.store(false, std::memory_order_release);
  return taken;
}

void Slab::set_pressure(std::shared_ptr<Pressure> pressure) {
  const std::lock_guard<std::mutex> hold(values_mutex_);
  pressure_.swap(pressure);  // the old one goes after the lock
}

bool Slab::relieve(Bytes size_B, bool worker) {
  std::shared_ptr<Pressure> pressure;
  {
    const std::lock_guard<std::mutex> hold(values_mutex_);
    pressure = pressure_;
  }
  return pressure != nullptr && is_open() && pressure->relieve(size_B, worker);
}

}  // namespace lowtide::shim
