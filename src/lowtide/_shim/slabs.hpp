// Slabs: which slab owns an address, and which one serves threads that chose none.
//
// OWNERS. A fixed table of slabs, read without a lock by every release. A slab enters it before its first block exists
// and leaves it before its memory is given back; slabs are never destroyed, so a reader may hold on to one.
// ENGAGEMENTS. In the order in which threads engaged. Worker threads of a parallel operator do not know whose operator
// it is: they are served from the slab that was engaged last. With one slab per process, the rule, that is exact.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "slab.hpp"

namespace lowtide::shim {

class Slabs {
 public:
  static constexpr std::size_t MOST = 64;  // open at once

  Slab* owner_of(const void* p) const {
    const std::size_t used = used_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < used; ++i) {
      Slab* slab = table_[i].load(std::memory_order_acquire);
      if (slab != nullptr && slab->owns(p)) return slab;
    }
    return nullptr;
  }
  // Serves threads that are not engaged: workers of parallel operators, and everybody where a slab asks for it.
  Slab* for_workers() const { return last_.load(std::memory_order_acquire); }

  void add(Slab* slab);  // throws std::length_error
  void remove(Slab* slab);
  void engage(Slab* slab);
  void disengage(Slab* slab);

  void before_fork();
  void after_fork(bool child);

 private:
  std::array<std::atomic<Slab*>, MOST> table_{};
  std::atomic<std::size_t> used_{0};
  std::atomic<Slab*> last_{nullptr};
  std::mutex mutex_;
  std::vector<Slab*> engaged_;  // in order
  std::vector<Slab*> all_;      // that ever were
};

Slabs& slabs();

}  // namespace lowtide::shim
