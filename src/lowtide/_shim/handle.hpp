// Handle: what Python holds of a slab. The end of one that has opened its slab closes it; the memory stays until the
// last tensor has left it. A borrowed slab, a device's, is not closed.
#pragma once
#include "slab.hpp"

namespace lowtide::shim {

class Handle {
 public:
  explicit Handle(const Slab::Options& options) : slab_(Slab::open(options)), is_borrowed_(false) {}
  explicit Handle(Slab& slab, bool is_borrowed = true) : slab_(&slab), is_borrowed_(is_borrowed) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (!is_borrowed_) slab_->let_go();
  }

  Slab* slab() const { return slab_; }

 private:
  Slab* slab_;
  bool is_borrowed_;
};

}  // namespace lowtide::shim
