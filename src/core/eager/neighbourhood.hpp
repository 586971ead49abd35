// Neighbourhood: what the recovery of a value would recompute besides.
//
// Two roots are kin where a call that makes one, or a view of it, reads the other, or a view of that: the one that is
// read is a parent, the one that is made a child. Reckoned through evicted roots only:
//   ancestors(t)    evicted roots that have to be rematerialised before t can be (e_R)
//   descendants(t)  evicted roots whose recovery would need t (e_D)
// Exact sums of their costs are kept per root, and found anew, by a walk, once something in or at the edge of the
// region has come or gone. Classes are the cheap approximation: an evicted root joins the class of its evicted kin, a
// recovered one takes its cost with it and leaves, and classes are never split, so that they may join what is no longer
// kin (Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021). The sums are integers: their order does not
// matter.
//
// The eviction manager reports every change. Only what a policy asks for is kept.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "classes.hpp"
#include "ids.hpp"
#include "ledger.hpp"

namespace lowtide::eager {

class Neighbourhood {
 public:
  struct Kept {
    bool exact, classes;
  };

  Neighbourhood(const Ledger& ledger, Kept kept) : ledger_(ledger), kept_(kept) {}

  // A root has just become evicted, or resident again.
  void evicted(ValueId root);
  void restored(ValueId root);
  // It is about to leave the ledger.
  void leaves(ValueId root);
  // A view of it is, with the kin that it has through that view's call.
  void view_leaves(ValueId root) {
    if (kept_.exact) outdate(root);
  }

  // Exact. O(1), or a walk of the region.
  Nanoseconds ancestors_ns(ValueId root) const;
  Nanoseconds descendants_ns(ValueId root) const;

  // Whether the program can name it, or a view of it.
  bool has_handle(ValueId root) const;
  // Whether an evicted root that the program can name would need this one, through evicted ones only: what lies between
  // this one and one that is resident again is evicted and wanted by nobody. What is found holds for the whole search
  // that has begun, in which nothing may come or go. A walk, as far as sums are not known.
  bool is_wanted(ValueId root) const;
  // Forgets who was wanted.
  void begin_search() const;

  // Classes. Of an evicted root; NO_CLASS for any other.
  ClassId class_of(ValueId root) const;
  Nanoseconds class_ns(ClassId id) const { return classes_.cost_ns(id); }
  // The classes of evicted parents and children, each once. O(kin).
  Nanoseconds neighbours_ns(ValueId root) const;

  // Whether what is kept equals what walks of everything find: what is broken, or nothing. O(values^2).
  std::string check() const;

  // Every parent or child; one may come several times.
  template <class Visit>
  void visit_parents(ValueId root, const Visit& visit) const {
    visit_inputs(root, root, visit);
    for (ValueId view : ledger_[root].views) visit_inputs(view, root, visit);
  }
  template <class Visit>
  void visit_children(ValueId root, const Visit& visit) const {
    visit_outputs(root, root, visit);
    for (ValueId view : ledger_[root].views) visit_outputs(view, root, visit);
  }

 private:
  static constexpr Nanoseconds UNKNOWN = -1;
  struct Entry {
    Nanoseconds ancestors_ns = UNKNOWN, descendants_ns = UNKNOWN;
    ClassId node = NO_CLASS;
    std::uint32_t seen = 0;    // by the walk of this number
    std::uint32_t judged = 0;  // in the search of this number
    bool is_wanted = false;    // as judged
    ValueId from = NO_VALUE;   // by whom the walk came here
  };

  Entry& at(ValueId id) const;
  template <class Visit>
  void visit_inputs(ValueId tensor, ValueId root, const Visit& visit) const {
    const CallId producer = ledger_[tensor].producer;
    if (producer == NO_CALL) return;
    for (const Input& input : ledger_.call(producer).inputs) {
      const ValueId parent = ledger_[input.value].root;
      if (parent != root) visit(parent);
    }
  }
  template <class Visit>
  void visit_outputs(ValueId tensor, ValueId root, const Visit& visit) const {
    for (const Reader& reader : ledger_[tensor].readers)
      for (const Output& output : ledger_.call(reader.call).outputs) {
        if (!ledger_.makes(output)) continue;
        const ValueId child = ledger_[output.value].root;
        if (child != root) visit(child);
      }
  }
  void begin_walk() const;
  void judge(ValueId id, bool wanted) const;
  // Every root that is reached in one direction through evicted ones: these, and the others at the edge.
  template <bool up, class Visit>
  void walk(ValueId root, const Visit& visit) const;
  void outdate(ValueId root);
  void change(ValueId root, Nanoseconds by_ns);
  static void forget(Nanoseconds& sum_ns, std::int64_t& known);

  const Ledger& ledger_;
  Kept kept_;
  mutable std::vector<Entry> entries_;  // by ValueId
  mutable std::vector<ValueId> stack_;
  mutable std::vector<ValueId> reached_;
  mutable std::uint32_t walk_ = 0, search_ = 1;
  // Sums of each kind in entries_: while there are none, changes cost nothing.
  mutable std::int64_t known_ancestors_ = 0, known_descendants_ = 0;
  mutable Classes classes_;
  mutable std::vector<ClassId> found_;
};

}  // namespace lowtide::eager
