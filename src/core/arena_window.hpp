// Window: the cheapest run of neighbouring spans that yields enough bytes.
//
// Looking for a contiguous window, instead of evicting the cheapest blocks wherever they lie, is the idea of Coop
// (Zhang et al., Coop: Memory is not a Commodity, NeurIPS 2023): what is evicted then surely makes one hole.
// Two pointers move along the spans: for each end of a run its latest start. Costs in the run are kept as sums of
// two stacks, never by subtraction, so that a large cost that has left the run takes no small one with it. O(spans).
#pragma once
#include <cstddef>
#include <vector>

#include "bytes.hpp"

namespace lowtide {

// One span, as the search sees it.
struct Stretch {
  Bytes yield_B;    // free bytes that it adds to a run
  double cost;      // not negative; infinite: no run may contain it
  Bytes evicted_B;  // bytes in use that it evicts
};

// stretches[first .. last].
struct Run {
  std::size_t first = 1, last = 0;
  double cost = 0;
  Bytes evicted_B = 0;
  bool found() const { return first <= last; }
};

// The run that yields need_B (> 0) at the least sum of costs; of equals the fewest evicted bytes, then the first.
// `sums` is for whoever searches often: it is overwritten, and keeps its memory.
Run cheapest_run(const std::vector<Stretch>& stretches, Bytes need_B, std::vector<double>& sums);
inline Run cheapest_run(const std::vector<Stretch>& stretches, Bytes need_B) {
  std::vector<double> sums;
  return cheapest_run(stretches, need_B, sums);
}

}  // namespace lowtide
