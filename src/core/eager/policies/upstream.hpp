// The neighbourhood of DTE and Coop: what has to be rematerialised before a value can be, by classes.
#pragma once
#include <algorithm>

#include "../neighbourhood.hpp"

namespace lowtide::eager {

// Over evicted inputs and sibling outputs of the calls that make a root: the greater of the class's cost and its own.
// Consumers are not looked at; they count through classes that were joined before.
inline Nanoseconds upstream_ns(const Ledger& ledger, const Neighbourhood& neighbourhood, ValueId root) {
  Nanoseconds cost_ns = 0;
  const auto add = [&](ValueId neighbour) {
    const ValueId near = ledger[neighbour].root;
    const ClassId group = near == root ? NO_CLASS : neighbourhood.class_of(near);
    if (group != NO_CLASS) cost_ns += std::max(neighbourhood.class_ns(group), ledger[near].cost_ns);
  };
  const auto visit = [&](ValueId tensor) {
    const CallId producer = ledger[tensor].producer;
    if (producer == NO_CALL) return;
    for (const Input& input : ledger.call(producer).inputs) add(input.value);
    for (const Output& output : ledger.call(producer).outputs)
      if (ledger.makes(output)) add(output.value);
  };
  visit(root);
  for (ValueId view : ledger[root].views) visit(view);
  return cost_ns;
}

}  // namespace lowtide::eager
