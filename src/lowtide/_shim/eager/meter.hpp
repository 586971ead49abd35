// Meter: keeps a slab's books of what one kernel asks for, and closes them whatever becomes of it.
#pragma once
#include <vector>

#include "slab.hpp"

namespace lowtide::shim {

class Meter {
 public:
  // Not `on`: it does nothing.
  Meter(Slab& slab, bool on) : slab_(slab), on_(on) {}
  ~Meter() {
    if (begun_) slab_.metered();
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  bool is_on() const { return on_; }
  void begin() {
    if (on_) slab_.meter();
    begun_ = on_;
  }
  std::vector<Bytes> end() {
    begun_ = false;
    return slab_.metered();
  }

 private:
  Slab& slab_;
  const bool on_;
  bool begun_ = false;
};

}  // namespace lowtide::shim
