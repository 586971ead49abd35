// What a slab that keeps values does beyond serving: whose block is whose, who died, and who makes room.
#include "slab.hpp"

namespace lowtide::shim {

Bytes Slab::place_value(Bytes size_B) {
  const End end = size_B < LITTLE_B ? End::high : side_.load(std::memory_order_relaxed);
  const Bytes offset_B = size_B <= NUMBER_B ? arena_->allocate(size_B, small_lo(), options_.capacity_B, end, 0)
                                            : arena_->allocate(size_B, 0, home_lo(), end, 0);
  return offset_B != NOWHERE ? offset_B : arena_->allocate(size_B, 0, options_.capacity_B, end, 0);
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
