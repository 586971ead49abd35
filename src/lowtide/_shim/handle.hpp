// Handle: what Python holds of a slab. Its end closes the slab; the memory stays until the last tensor has left it.
#pragma once
#include "slab.hpp"

namespace lowtide::shim {

class Handle {
 public:
  explicit Handle(const Slab::Options& options) : slab_(Slab::open(options)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { slab_->let_go(); }

  Slab* slab() const { return slab_; }

 private:
  Slab* slab_;
};

}  // namespace lowtide::shim
