#include "neighbourhood.hpp"

#include <algorithm>

namespace lowtide::eager {

namespace {

bool holds(const std::vector<ValueId>& list, ValueId id) { return std::find(list.begin(), list.end(), id) != list.end(); }

}  // namespace

bool Neighbourhood::has_handle(ValueId root) const {
  const Value& v = ledger_[root];
  if (v.alive) return true;
  for (ValueId view : v.views)
    if (ledger_[view].alive) return true;
  return false;
}

// Leaves are never evicted. `without`: a view of the root that does not count.
void Neighbourhood::gather_parents(ValueId root, ValueId without, std::vector<ValueId>& above) const {
  above.clear();
  const auto add = [&](ValueId parent) {
    if (!ledger_[parent].is_leaf() && !holds(above, parent)) above.push_back(parent);
  };
  visit_inputs(root, root, add);
  for (ValueId view : ledger_[root].views)
    if (view != without) visit_inputs(view, root, add);
}

void Neighbourhood::gather_children(ValueId root, std::vector<ValueId>& below) const {
  below.clear();
  visit_children(root, [&](ValueId child) {
    if (!holds(below, child)) below.push_back(child);
  });
}

// The child is none of the parent's any more. What is evicted has no new ones: who reads it brings it back first.
void Neighbourhood::part(ValueId parent, ValueId child) {
  if (!at(parent).is_gone()) return;
  std::vector<ValueId>& below = at(parent).below;
  const auto found = std::find(below.begin(), below.end(), child);
  if (found == below.end()) return;
  *found = below.back();
  below.pop_back();
}

void Neighbourhood::leave_parents(ValueId root) {
  visit_parents(root, [&](ValueId parent) { part(parent, root); });
}

bool Neighbourhood::does_lack(ValueId root) const {
  const Entry& entry = at(root);
  return entry.is_gone() && (entry.lacking > 0 || has_handle(root));
}

// A child of this root has begun, or ceased, to lack it.
void Neighbourhood::count(ValueId parent, bool lacks) {
  Entry& entry = at(parent);
  entry.lacking += lacks ? 1 : -1;
  if (entry.lacks == lacks || does_lack(parent) != lacks) return;
  entry.lacks = lacks;
  stack_.push_back(parent);
}

// Who turns because others did, all of them the same way.
void Neighbourhood::count_upwards(bool lacks) {
  while (!stack_.empty()) {
    const ValueId child = stack_.back();
    stack_.pop_back();
    for (const ValueId parent : at(child).above) count(parent, lacks);
  }
}

void Neighbourhood::turn(ValueId root) {
  const bool lacks = at(root).lacks = !at(root).lacks;
  stack_.assign(1, root);
  count_upwards(lacks);
}

void Neighbourhood::begin_walk() const {
  if (++walk_ != 0) return;
  for (Entry& entry : entries_) entry.seen = 0;  // the numbers are used up
  walk_ = 1;
}

template <bool up, class Visit>
void Neighbourhood::walk(ValueId root, const Visit& visit) const {
  begin_walk();
  at(root).seen = walk_;
  stack_.assign(1, root);
  while (!stack_.empty()) {
    const ValueId from = stack_.back();
    stack_.pop_back();
    const auto reach = [&](ValueId to) {
      Entry& entry = entries_[static_cast<std::size_t>(to)];
      if (entry.seen == walk_) return;
      entry.seen = walk_;
      visit(entry, to);
      if (entry.is_gone()) stack_.push_back(to);
    };
    const Entry& entry = entries_[static_cast<std::size_t>(from)];
    if (entry.is_gone())
      for (const ValueId to : up ? entry.above : entry.below) reach(to);
    else if constexpr (up)
      visit_parents(from, reach);
    else
      visit_children(from, reach);
  }
}

void Neighbourhood::forget(Nanoseconds& sum_ns, std::int64_t& known) {
  known -= sum_ns != UNKNOWN;
  sum_ns = UNKNOWN;
}

// What it has become known for, and others for its sake, is no longer so.
void Neighbourhood::outdate(ValueId root) {
  forget(at(root).ancestors_ns, known_ancestors_);
  forget(at(root).descendants_ns, known_descendants_);
  outdate_others(root);
}

// INVARIANT: a root whose sum of ancestors is known is COUNTED, and so are its evicted ancestors. So a walk down to those
// whose sums are known ends where somebody is not.
template <class Visit>
void Neighbourhood::walk_counted(ValueId root, const Visit& visit) {
  begin_walk();
  at(root).seen = walk_;
  stack_.assign(1, root);
  while (!stack_.empty()) {
    const ValueId from = stack_.back();
    stack_.pop_back();
    const auto reach = [&](ValueId to) {
      Entry& entry = entries_[static_cast<std::size_t>(to)];
      if (!entry.is_counted || entry.seen == walk_) return;
      entry.seen = walk_;
      visit(entry);
      if (entry.is_gone()) stack_.push_back(to);
    };
    if (const Entry& entry = entries_[static_cast<std::size_t>(from)]; entry.is_gone())
      for (const ValueId to : entry.below) reach(to);
    else
      visit_children(from, reach);
  }
}

void Neighbourhood::outdate_others(ValueId root) {
  if (known_ancestors_ > 0)
    walk_counted(root, [&](Entry& entry) {
      forget(entry.ancestors_ns, known_ancestors_);
      entry.is_counted = false;
    });
  if (known_descendants_ > 0)
    walk<true>(root, [&](Entry& entry, ValueId) { forget(entry.descendants_ns, known_descendants_); });
}

// A root came or went, which changes nothing of its own sums. Where none of its parents is evicted, who needs it needs so
// much more or less, and no more than that: their sums are still known. So it is whenever a value has just been
// recomputed from what it reads.
void Neighbourhood::change(ValueId root, Nanoseconds by_ns) {
  const std::vector<ValueId>& above = at(root).above;
  if (std::any_of(above.begin(), above.end(), [&](ValueId parent) { return at(parent).is_gone(); })) return outdate_others(root);
  at(root).is_counted = true;
  if (known_ancestors_ > 0)
    walk_counted(root, [&](Entry& entry) { entry.ancestors_ns += entry.ancestors_ns != UNKNOWN ? by_ns : 0; });
  if (known_descendants_ > 0)
    walk<true>(root, [&](Entry& entry, ValueId) { forget(entry.descendants_ns, known_descendants_); });
}

void Neighbourhood::evicted(ValueId root) {
  if (keeps_regions()) {
    at(root).gone_ns = ledger_[root].cost_ns;
    gather_parents(root, NO_VALUE, at(root).above);
    gather_children(root, at(root).below);
  }
  if (kept_.exact) change(root, ledger_[root].cost_ns);
  review(root);
  if (!kept_.classes) return;
  const ClassId node = classes_.add(ledger_[root].cost_ns);
  at(root).node = node;
  const auto join = [&](ValueId near) {
    if (near != root && at(near).node != NO_CLASS) classes_.merge(at(near).node, node);
  };
  visit_parents(root, join);
  visit_children(root, join);
}

void Neighbourhood::restored(ValueId root) {
  if (kept_.exact) change(root, -ledger_[root].cost_ns);
  at(root).gone_ns = RESIDENT;
  review(root);
  if (!kept_.classes) return;
  Entry& entry = at(root);
  classes_.withdraw(entry.node, ledger_[root].cost_ns);
  entry.node = NO_CLASS;
}

void Neighbourhood::becomes_leaf(ValueId root) {
  if (kept_.exact) outdate(root);
  if (at(root).lacks) turn(root);
  if (keeps_regions()) leave_parents(root);
}

void Neighbourhood::leaves(ValueId root) {
  if (kept_.exact) outdate(root);
  if (at(root).lacks) turn(root);
  if (keeps_regions()) leave_parents(root);
  Entry& entry = at(root);
  if (kept_.classes && entry.node != NO_CLASS) classes_.withdraw(entry.node, ledger_[root].cost_ns);
  Entry empty;
  std::swap(empty.above, entry.above);  // lists keep their memory
  std::swap(empty.below, entry.below);
  std::swap(empty, entry);
}

void Neighbourhood::view_leaves(ValueId view) {
  const ValueId root = ledger_[view].root;
  if (!keeps_regions()) return;
  if (kept_.exact) outdate(root);
  gather_parents(root, view, fewer_);
  stack_.clear();
  visit_inputs(view, root, [&](ValueId parent) {
    if (holds(fewer_, parent)) return;
    part(parent, root);
    if (!at(root).lacks || !holds(at(root).above, parent)) return;
    at(root).above.erase(std::find(at(root).above.begin(), at(root).above.end(), parent));
    count(parent, false);
  });
  if (at(root).is_gone()) at(root).above = fewer_;
  count_upwards(false);
}

Nanoseconds Neighbourhood::find_ancestors_ns(ValueId root) const {
  // Up to where it is known, or where there is not one evicted parent but several.
  chain_.clear();
  ValueId id = root;
  Nanoseconds sum_ns = UNKNOWN;
  while (sum_ns == UNKNOWN) {
    ValueId above = NO_VALUE;
    bool has_several = false;
    const auto look_at = [&](ValueId parent) {
      if (parent == above || !at(parent).is_gone()) return;
      has_several = above != NO_VALUE;
      above = parent;
    };
    if (at(id).is_gone())
      for (const ValueId parent : at(id).above) look_at(parent);
    else
      visit_parents(id, look_at);
    if (has_several || above == NO_VALUE) {
      sum_ns = 0;
      if (has_several)
        walk<true>(id, [&](Entry& entry, ValueId) {
          if (!entry.is_gone()) return;
          sum_ns += entry.gone_ns;
          entry.is_counted = true;
        });
      know(id, sum_ns);
    } else {
      chain_.push_back(id);
      sum_ns = at(id = above).ancestors_ns;
    }
  }
  for (; !chain_.empty(); chain_.pop_back()) {
    sum_ns += at(id).gone_ns;
    know(id = chain_.back(), sum_ns);
  }
  return sum_ns;
}

void Neighbourhood::know(ValueId root, Nanoseconds ancestors_ns) const {
  at(root).ancestors_ns = ancestors_ns;
  at(root).is_counted = true;
  ++known_ancestors_;
}

Nanoseconds Neighbourhood::descendants_ns(ValueId root) const {
  Entry& entry = at(root);
  if (entry.descendants_ns != UNKNOWN) return entry.descendants_ns;
  Nanoseconds sum_ns = 0;
  walk<false>(root, [&](const Entry& of, ValueId) { sum_ns += of.is_gone() ? of.gone_ns : 0; });
  ++known_descendants_;
  return entry.descendants_ns = sum_ns;
}

ClassId Neighbourhood::class_of(ValueId root) const {
  const ClassId node = at(root).node;
  return node == NO_CLASS ? NO_CLASS : classes_.root(node);
}

Nanoseconds Neighbourhood::neighbours_ns(ValueId root) const {
  found_.clear();
  Nanoseconds sum_ns = 0;
  const auto add = [&](ValueId near) {
    const ClassId found = class_of(near);
    if (found == NO_CLASS || std::find(found_.begin(), found_.end(), found) != found_.end()) return;
    found_.push_back(found);
    sum_ns += classes_.cost_ns(found);
  };
  visit_parents(root, add);
  visit_children(root, add);
  return sum_ns;
}

std::string Neighbourhood::check() const {
  const auto cost_ns = [&](ValueId id) { return ledger_[id].is_evicted() ? ledger_[id].cost_ns : 0; };
  std::vector<Nanoseconds> of_class_ns;
  for (std::size_t i = 0; i < ledger_.value_slots(); ++i) {
    const ValueId id = static_cast<ValueId>(i);
    const Value& v = ledger_[id];
    if (v.serial < 0 || v.root != id) continue;
    const Entry& entry = at(id);
    Nanoseconds above_ns = 0, below_ns = 0;
    if (keeps_regions() && entry.is_gone() != v.is_evicted()) return "an evicted value is not known as such, or the reverse";
    walk<true>(id, [&](const Entry&, ValueId to) { above_ns += cost_ns(to); });
    walk<false>(id, [&](const Entry&, ValueId to) { below_ns += cost_ns(to); });
    const auto is_old = [](Nanoseconds sum_ns, Nanoseconds now_ns) { return sum_ns != UNKNOWN && sum_ns != now_ns; };
    if (is_old(entry.ancestors_ns, above_ns)) return "a sum of ancestors is out of date";
    bool counted = entry.is_counted;
    walk<true>(id, [&](const Entry& above, ValueId) { counted = counted && (above.is_counted || !above.is_gone()); });
    if (entry.ancestors_ns != UNKNOWN && !counted) return "who needs a root whose cost changes would not be found";
    if (v.is_candidate() && is_old(entry.descendants_ns, below_ns)) return "a sum of descendants is out of date";
    bool wanted = false;
    walk<false>(id, [&](const Entry&, ValueId to) { wanted = wanted || (ledger_[to].is_evicted() && has_handle(to)); });
    if (kept_.wanted && !v.is_leaf() && wanted != is_wanted(id)) return "who is wanted is out of date";
    if (!kept_.classes) continue;
    if ((entry.node != NO_CLASS) != v.is_evicted()) return "an evicted value is in no class, or a resident one in one";
    const ClassId root = class_of(id);
    if (root == NO_CLASS) continue;
    if (of_class_ns.size() <= static_cast<std::size_t>(root)) of_class_ns.resize(static_cast<std::size_t>(root) + 1);
    of_class_ns[static_cast<std::size_t>(root)] += v.cost_ns;
  }
  for (std::size_t root = 0; root < of_class_ns.size(); ++root)
    if (of_class_ns[root] > 0 && classes_.cost_ns(static_cast<ClassId>(root)) != of_class_ns[root])
      return "a class does not cost what its values do";
  return {};
}

}  // namespace lowtide::eager
