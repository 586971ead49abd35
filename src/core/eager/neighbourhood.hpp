// Neighbourhood: what the recovery of a value would recompute besides.
//
// Two roots are kin where a call that makes one, or a view of it, reads the other, or a view of that, and the other is
// older: the one that is read is a parent, the one that is made a child. (What only a view's call reads, and is younger
// than the content itself, may be made of it.) Reckoned through evicted roots only:
//   ancestors(t)    evicted roots that have to be rematerialised before t can be (e_R)
//   descendants(t)  evicted roots whose recovery would need t (e_D)
// Exact sums of their costs are kept per root, and found anew, by a walk, once something in or at the edge of the
// region has come or gone. Classes are the cheap approximation: an evicted root joins the class of its evicted kin, a
// recovered one takes its cost with it and leaves, and classes are never split, so that they may join what is no longer
// kin (Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021). The sums are integers: their order does not
// matter.
//
// An evicted root LACKS its parents if the program can name it, or if one of its own children lacks it: then they are
// wanted. Parents are older than their children, so that a count per root of the children that lack it says who is
// wanted, and a change goes upwards as far as counts become one or none.
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
    bool exact = false, classes = false, wanted = false;
  };

  Neighbourhood(const Ledger& ledger, Kept kept) : ledger_(ledger), kept_(kept) {}

  // A root has just become evicted, or resident again.
  void evicted(ValueId root);
  void restored(ValueId root);
  // The program cannot name it any more.
  void died(ValueId root) { review(root); }
  // It is about to become a leaf: nothing is its parent any more.
  void becomes_leaf(ValueId root);
  // It is about to leave the ledger.
  void leaves(ValueId root);
  // A view of a root is, with the kin that the root has through that view's call.
  void view_leaves(ValueId view);

  // Exact. O(1), or a walk: to the next root whose sum is known where nobody on the way has two evicted parents, else of
  // the region.
  Nanoseconds ancestors_ns(ValueId root) const {
    const Nanoseconds known_ns = at(root).ancestors_ns;
    return known_ns != UNKNOWN ? known_ns : find_ancestors_ns(root);
  }
  Nanoseconds descendants_ns(ValueId root) const;

  // Whether the program can name it, or a view of it.
  bool has_handle(ValueId root) const;
  // Whether an evicted root that the program can name would need this one, through evicted ones only: what lies between
  // this one and one that is resident again is evicted and wanted by nobody. O(1).
  bool is_wanted(ValueId root) const { return at(root).lacking > 0; }

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
  static constexpr Nanoseconds UNKNOWN = -1, RESIDENT = -1;
  struct Entry {
    Nanoseconds ancestors_ns = UNKNOWN, descendants_ns = UNKNOWN;
    Nanoseconds gone_ns = RESIDENT;  // what an evicted root costs
    std::vector<ValueId> above;      // of an evicted root: its parents, each once, without leaves
    std::vector<ValueId> below;      // its children, each once
    ClassId node = NO_CLASS;
    std::uint32_t seen = 0;  // by the walk of this number
    Index lacking = 0;       // children that lack it
    bool lacks = false;      // its parents
    bool is_counted = false;  // see walk_counted()
    bool is_gone() const { return gone_ns != RESIDENT; }
  };

  bool keeps_regions() const { return kept_.exact || kept_.wanted; }
  Entry& at(ValueId id) const {
    if (entries_.size() < ledger_.value_slots()) entries_.resize(ledger_.value_slots());
    return entries_[static_cast<std::size_t>(id)];
  }
  template <class Visit>
  void visit_inputs(ValueId tensor, ValueId root, const Visit& visit) const {
    const CallId producer = ledger_[tensor].producer;
    if (producer == NO_CALL) return;
    for (const Input& input : ledger_.call(producer).inputs) {
      const ValueId parent = ledger_[input.value].root;
      if (parent != root && (tensor == root || ledger_[parent].serial < ledger_[root].serial)) visit(parent);
    }
  }
  template <class Visit>
  void visit_outputs(ValueId tensor, ValueId root, const Visit& visit) const {
    for (const Reader& reader : ledger_[tensor].readers)
      for (const Output& output : ledger_.call(reader.call).outputs) {
        if (!ledger_.makes(output)) continue;
        const ValueId child = ledger_[output.value].root;
        if (child != root && (child == output.value || ledger_[child].serial > ledger_[root].serial)) visit(child);
      }
  }
  void begin_walk() const;
  void gather_parents(ValueId root, ValueId without, std::vector<ValueId>& above) const;
  void gather_children(ValueId root, std::vector<ValueId>& below) const;
  void part(ValueId parent, ValueId child);
  void leave_parents(ValueId root);
  bool does_lack(ValueId root) const;
  void review(ValueId root) {
    if (kept_.wanted && does_lack(root) != at(root).lacks) turn(root);
  }
  void turn(ValueId root);  // it has begun, or ceased, to lack its parents
  void count(ValueId parent, bool lacks);
  void count_upwards(bool lacks);
  void know(ValueId root, Nanoseconds ancestors_ns) const;
  Nanoseconds find_ancestors_ns(ValueId root) const;
  // Every root that is reached in one direction through evicted ones: these, and the others at the edge.
  template <bool up, class Visit>
  void walk(ValueId root, const Visit& visit) const;
  template <class Visit>
  void walk_counted(ValueId root, const Visit& visit);
  void outdate(ValueId root);
  void outdate_others(ValueId root);
  void change(ValueId root, Nanoseconds by_ns);
  static void forget(Nanoseconds& sum_ns, std::int64_t& known);

  const Ledger& ledger_;
  Kept kept_;
  mutable std::vector<Entry> entries_;  // by ValueId
  mutable std::vector<ValueId> stack_;
  mutable std::vector<ValueId> chain_;
  std::vector<ValueId> fewer_;
  mutable std::uint32_t walk_ = 0;
  // Sums of each kind in entries_: while there are none, changes cost nothing.
  mutable std::int64_t known_ancestors_ = 0, known_descendants_ = 0;
  mutable Classes classes_;
  mutable std::vector<ClassId> found_;
};

}  // namespace lowtide::eager
