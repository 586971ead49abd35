#include "neighbourhood.hpp"

#include <algorithm>

namespace lowtide::eager {

Neighbourhood::Entry& Neighbourhood::at(ValueId id) const {
  if (entries_.size() < ledger_.value_slots()) entries_.resize(ledger_.value_slots());
  return entries_[static_cast<std::size_t>(id)];
}

bool Neighbourhood::has_handle(ValueId root) const {
  const Value& v = ledger_[root];
  if (v.alive) return true;
  for (ValueId view : v.views)
    if (ledger_[view].alive) return true;
  return false;
}

bool Neighbourhood::is_wanted(ValueId root) const {
  if (const Entry& known = at(root); known.judged == search_) return known.is_wanted;
  begin_walk();
  stack_.assign(1, root);
  at(root).seen = walk_;
  at(root).from = NO_VALUE;
  reached_.assign(1, root);
  ValueId last = NO_VALUE;  // whose walk it is that wants the root
  while (!stack_.empty() && last == NO_VALUE) {
    const ValueId from = stack_.back();
    stack_.pop_back();
    visit_children(from, [&](ValueId to) {
      Entry& entry = entries_[static_cast<std::size_t>(to)];
      if (last != NO_VALUE || entry.seen == walk_ || !ledger_[to].is_evicted()) return;
      entry.seen = walk_;
      if (has_handle(to) || (entry.judged == search_ && entry.is_wanted)) {
        last = from;
      } else if (entry.judged != search_) {
        entry.from = from;
        reached_.push_back(to);
        stack_.push_back(to);
      }
    });
  }
  if (last == NO_VALUE)  // nothing that was reached reaches anybody who wants it
    for (const ValueId id : reached_) judge(id, false);
  for (ValueId id = last; id != NO_VALUE; id = at(id).from) judge(id, true);
  return last != NO_VALUE;
}

void Neighbourhood::begin_search() const {
  if (++search_ != 0) return;
  for (Entry& entry : entries_) entry.judged = 0;  // the numbers are used up
  search_ = 1;
}

void Neighbourhood::begin_walk() const {
  if (++walk_ != 0) return;
  for (Entry& entry : entries_) entry.seen = 0;  // the numbers are used up
  walk_ = 1;
}

void Neighbourhood::judge(ValueId id, bool wanted) const {
  Entry& entry = at(id);
  entry.judged = search_;
  entry.is_wanted = wanted;
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
      visit(to);
      if (ledger_[to].is_evicted()) stack_.push_back(to);
    };
    if constexpr (up)
      visit_parents(from, reach);
    else
      visit_children(from, reach);
  }
}

void Neighbourhood::forget(Nanoseconds& sum_ns, std::int64_t& known) {
  known -= sum_ns != UNKNOWN;
  sum_ns = UNKNOWN;
}

void Neighbourhood::outdate(ValueId root) {
  forget(at(root).ancestors_ns, known_ancestors_);
  forget(at(root).descendants_ns, known_descendants_);
  if (known_ancestors_ > 0) walk<false>(root, [&](ValueId id) { forget(at(id).ancestors_ns, known_ancestors_); });
  if (known_descendants_ > 0) walk<true>(root, [&](ValueId id) { forget(at(id).descendants_ns, known_descendants_); });
}

// A root came or went. Where none of its parents is evicted, who needs it needs so much more or less, and no more than
// that: their sums are still known. So it is whenever a value has just been recomputed from what it reads.
void Neighbourhood::change(ValueId root, Nanoseconds by_ns) {
  bool is_first = true;
  visit_parents(root, [&](ValueId parent) { is_first = is_first && !ledger_[parent].is_evicted(); });
  if (!is_first) return outdate(root);
  if (known_ancestors_ > 0) {
    walk<false>(root, [&](ValueId id) {
      Entry& entry = entries_[static_cast<std::size_t>(id)];
      if (entry.ancestors_ns != UNKNOWN) entry.ancestors_ns += by_ns;
    });
  }
  if (known_descendants_ > 0) walk<true>(root, [&](ValueId id) { forget(at(id).descendants_ns, known_descendants_); });
}

void Neighbourhood::evicted(ValueId root) {
  if (kept_.exact) change(root, ledger_[root].cost_ns);
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
  Entry& entry = at(root);
  if (kept_.exact) change(root, -ledger_[root].cost_ns);
  if (!kept_.classes) return;
  classes_.withdraw(entry.node, ledger_[root].cost_ns);
  entry.node = NO_CLASS;
}

void Neighbourhood::leaves(ValueId root) {
  Entry& entry = at(root);
  if (kept_.exact) outdate(root);
  if (kept_.classes && entry.node != NO_CLASS) classes_.withdraw(entry.node, ledger_[root].cost_ns);
  entry = Entry();
}

Nanoseconds Neighbourhood::ancestors_ns(ValueId root) const {
  Entry& entry = at(root);
  if (entry.ancestors_ns != UNKNOWN) return entry.ancestors_ns;
  Nanoseconds sum_ns = 0;
  walk<true>(root, [&](ValueId id) { sum_ns += ledger_[id].is_evicted() ? ledger_[id].cost_ns : 0; });
  ++known_ancestors_;
  return entry.ancestors_ns = sum_ns;
}

Nanoseconds Neighbourhood::descendants_ns(ValueId root) const {
  Entry& entry = at(root);
  if (entry.descendants_ns != UNKNOWN) return entry.descendants_ns;
  Nanoseconds sum_ns = 0;
  walk<false>(root, [&](ValueId id) { sum_ns += ledger_[id].is_evicted() ? ledger_[id].cost_ns : 0; });
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
    walk<true>(id, [&](ValueId to) { above_ns += cost_ns(to); });
    walk<false>(id, [&](ValueId to) { below_ns += cost_ns(to); });
    const auto is_old = [&](Nanoseconds sum_ns, Nanoseconds now_ns) {  // what is no candidate is never asked about
      return v.is_candidate() && sum_ns != UNKNOWN && sum_ns != now_ns;
    };
    if (is_old(entry.ancestors_ns, above_ns)) return "a sum of ancestors is out of date";
    if (is_old(entry.descendants_ns, below_ns)) return "a sum of descendants is out of date";
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
