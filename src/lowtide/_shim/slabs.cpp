#include "slabs.hpp"

#include <algorithm>
#include <stdexcept>

namespace lowtide::shim {

void Slabs::add(Slab* slab) {
  const std::lock_guard<std::mutex> hold(mutex_);
  for (std::size_t i = 0; i < MOST; ++i) {
    if (table_[i].load() != nullptr) continue;
    all_.push_back(slab);
    table_[i].store(slab, std::memory_order_release);
    if (i >= used_.load()) used_.store(i + 1, std::memory_order_release);
    return;
  }
  throw std::length_error("64 arenas are open already: close some, or free the tensors that lie in closed ones");
}

void Slabs::remove(Slab* slab) {
  const std::lock_guard<std::mutex> hold(mutex_);
  for (auto& entry : table_)
    if (entry.load() == slab) entry.store(nullptr, std::memory_order_release);
  std::size_t used = used_.load();
  while (used > 0 && table_[used - 1].load() == nullptr) --used;
  used_.store(used, std::memory_order_release);
}

void Slabs::engage(Slab* slab) {
  const std::lock_guard<std::mutex> hold(mutex_);
  engaged_.push_back(slab);
  last_.store(slab, std::memory_order_release);
}

void Slabs::disengage(Slab* slab) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto found = std::find(engaged_.rbegin(), engaged_.rend(), slab);
  if (found != engaged_.rend()) engaged_.erase(std::next(found).base());
  last_.store(engaged_.empty() ? nullptr : engaged_.back(), std::memory_order_release);
}

void Slabs::before_fork() {
  mutex_.lock();
  for (auto& entry : table_)
    if (Slab* slab = entry.load()) slab->before_fork();
}

void Slabs::after_fork(bool child) {
  for (auto& entry : table_)
    if (Slab* slab = entry.load()) slab->after_fork(child);
  if (child) {
    engaged_.clear();
    last_.store(nullptr);
  }
  mutex_.unlock();
}

Slabs& slabs() {
  static Slabs* const kept = new Slabs;  // never destroyed: blocks are released until the very end of the process
  return *kept;
}

}  // namespace lowtide::shim
