// Classes: a union-find of nodes with costs, in a table whose slots are used again.
//
// Costs add up at the roots. A node is kept while somebody holds it or hangs on it. Paths are halved as they are
// walked.
#pragma once
#include <vector>

#include "ids.hpp"

namespace lowtide::eager {

using ClassId = std::int32_t;
constexpr ClassId NO_CLASS = -1;

class Classes {
 public:
  // A class of its own, held once.
  ClassId add(Nanoseconds cost_ns);
  void merge(ClassId a, ClassId b);
  ClassId root(ClassId id);
  Nanoseconds cost_ns(ClassId id) { return at(root(id)).cost_ns; }
  // Takes a cost out of the node's class, and releases the node.
  void withdraw(ClassId id, Nanoseconds cost_ns);
  std::size_t size() const { return nodes_.size() - unused_.size(); }

 private:
  struct Node {
    ClassId parent;  // itself: a root
    Index holds;     // by whoever added it, and by nodes whose parent it is
    Nanoseconds cost_ns;
  };
  Node& at(ClassId id) { return nodes_[static_cast<std::size_t>(id)]; }
  void release(ClassId id);

  std::vector<Node> nodes_;
  std::vector<ClassId> unused_;
};

}  // namespace lowtide::eager
