#include "classes.hpp"

namespace lowtide::eager {

ClassId Classes::add(Nanoseconds cost_ns) {
  ClassId id = 0;
  if (unused_.empty()) {
    id = static_cast<ClassId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  at(id) = {id, 1, cost_ns};
  return id;
}

ClassId Classes::root(ClassId id) {
  while (at(id).parent != id) {
    const ClassId parent = at(id).parent, above = at(parent).parent;
    if (above != parent) {  // hangs the node on its grandparent
      at(id).parent = above;
      ++at(above).holds;
      release(parent);
    }
    id = above;
  }
  return id;
}

void Classes::merge(ClassId a, ClassId b) {
  const ClassId lower = root(a), upper = root(b);
  if (lower == upper) return;
  at(upper).cost_ns += at(lower).cost_ns;
  at(lower).parent = upper;
  ++at(upper).holds;
}

void Classes::withdraw(ClassId id, Nanoseconds cost_ns) {
  at(root(id)).cost_ns -= cost_ns;
  release(id);
}

void Classes::release(ClassId id) {
  while (--at(id).holds == 0) {
    unused_.push_back(id);
    const ClassId parent = at(id).parent;
    if (parent == id) return;
    id = parent;
  }
}

}  // namespace lowtide::eager
