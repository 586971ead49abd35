// ChainTable: the least time of reversing any stretch of a chain of links, for every number of slots of memory.
//
// J. Herrmann, O. Beaumont, L. Eyraud-Dubois, J. Hermann, A. Joly, A. Shilova, "Optimal checkpointing for heterogeneous
// chains", arXiv 1911.13214 (2019), with several OPTIONS per link (what of it is saved) and with what crosses between
// links counted only as far as it is not held already, so that values may cross many cuts.
//
// time(first, last, m): links first .. last go backward, last one first, and m slots are free for that. What crosses in
// front of link first is there and is not counted; what the backward of the links behind `last` still holds counts
// against m. Either one of link first's options is saved while it runs, then first + 1 .. last are reversed, then
// first; or the links before some s run, what crosses in front of s is held, s .. last are reversed, then
// first .. s - 1. A stretch of one link recomputes what its backward reads.
//
// Splits of long stretches are thinned: the first NEAR, then every STRIDE-th, and the last few.
// O(links^2 * splits * slots) time, links^2 / 2 * slots floats. The choices are not stored: decode() finds them again.
// Invariant: time does not grow with m.
#pragma once
#include <vector>

#include "rows.hpp"

namespace lowtide {

struct ChainCosts {
  std::vector<Picos> run;        // link -> time of recomputing it
  std::vector<Picos> alone;      // link -> time of recomputing what its backward reads, if nothing of it was saved
  std::vector<Index> running;    // link -> slots it takes to run, what it hands on included
  std::vector<Index> reversing;  // link -> slots its backward takes then
  std::vector<Index> behind;     // link -> slots that the backward of the links behind it holds when it ends
  std::vector<Index> held;       // first * links + s -> slots of what crosses in front of s, and not in front of first
  std::vector<Index> option_begin;    // link -> its first option; one entry more than links
  std::vector<Index> option_saved;    // option -> slots held, what crosses behind the link included
  std::vector<Index> option_running;  // option -> slots it takes to run the link and save this
  std::vector<Index> option_reversing;  // option -> slots the backward of the link takes
  std::vector<Picos> option_time;     // option -> time of recomputing the rest

  Index links() const { return static_cast<Index>(run.size()); }
  bool is_valid() const;
};

// The best reversal of the whole chain. CUT POINTS are links: from when the backward of links up to this
// one begins; FROM_START: from the forward itself.
struct ChainPlan {
  static constexpr Index FROM_START = -1, NOT = -2;
  std::vector<Index> option;       // link -> the option that is saved; NOT: none
  std::vector<Index> saved_from;   // link -> the cut point from which its option is saved; NOT
  std::vector<Index> crossing_from;  // link -> the cut point from which what crosses behind it is held; NOT
};

class ChainTable {
 public:
  static constexpr Index NEAR = 24, STRIDE = 8;

  ChainTable(ChainCosts costs, Index slots);
  Index slots() const { return slots_; }
  // The fewest slots with which the chain can be reversed; -1 for none.
  Index least() const;
  double time(Index slots) const { return row(0, costs_.links() - 1)[at(slots)]; }
  ChainPlan decode(Index slots) const;
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  const float* row(Index first, Index last) const { return time_.data() + place(first, last) * at(slots_ + 1); }
  float* row(Index first, Index last) { return time_.data() + place(first, last) * at(slots_ + 1); }
  std::size_t place(Index first, Index last) const { return at(last) * (at(last) + 1) / 2 + at(first); }
  // Calls visit(choice, time, slots needed, row behind, slots less there, row before); see the .cpp.
  template <class Visit>
  void choices(Index first, Index last, Visit&& visit) const;
  void fill(Index first, Index last);

  ChainCosts costs_;
  Index slots_;
  std::vector<Picos> ahead_;  // time of running links 0 .. k - 1
  std::vector<float> time_;
};

}  // namespace lowtide
