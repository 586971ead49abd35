// ValleySearch: decides whether buffers fit within a capacity, and where.
//
// Time is cut into sections, one per largest set of buffers that are live together. A placement is built from the
// ground up. Its state is one floor per section, below which nothing more will be put, and what is left to place.
// A valley is a run of sections with equal floors between higher ones. In a placement whose buffers are all pushed
// down as far as they go, the lowest buffer to come over a section of a valley either begins on that floor, and then
// it lies in the valley with its whole life, or it begins at a known higher one. So a node chooses the section with
// the fewest such possibilities and tries each: no solution is met twice and none is lost.
// - Settling: no buffer begins below the highest floor under it, no floor lies below the lowest such beginning over
//   its section; floor + what is left over a section must stay within the capacity. Without slack this leaves few
//   choices; with none left the node fails.
// - What is left falls into parts that share no tick: each is solved alone, so a failure in one repeats no other.
// - Failed states (what is left, on which floors) are remembered by a 128-bit hash, in a table of fixed size.
// - Restarts: each try visits a few nodes, with the possibilities in the order of a key (area, lifetime, size)
//   disturbed at random; a few tries are longer, and some day one is long enough for a complete search.
// Buffers with given offsets are part of what is left to place, at one beginning only.
// The same seed and work give the same result. Deterministic: no clock.
//
// Sources: floors with what is left over, and the search in canonical order, are due to M. D. Moffitt, "MiniMalloc",
// ASPLOS 2023; the choice of the section, the raising of floors, the table and the restarts are our own.
#pragma once
#include <functional>
#include <vector>

#include "lifetimes.hpp"
#include "random.hpp"
#include "seen_states.hpp"

namespace lowtide {

class ValleySearch {
 public:
  enum class Answer { open, fits, never };

  ValleySearch(const Lifetimes& lifetimes, Bytes capacity, std::uint64_t seed);
  // Tries until `work` more is spent or the answer is known. Calls `poll` now and then; it may throw, and the search
  // is of no use then.
  Answer run(std::int64_t work, const std::function<void()>& poll = [] {});

  Answer answer() const { return answer_; }
  const std::vector<Bytes>& offsets() const { return offsets_; }  // a placement, if it fits
  std::int64_t work() const { return work_; }                     // in about 1,000 looks at a section
  std::int64_t nodes() const { return nodes_; }
  std::int64_t tries() const { return tries_; }

 private:
  // Sections [begin, begin + floor.size()) of the circle, what is left to place in them, and their floors.
  struct Part {
    Index begin = 0;
    bool ring = false;  // the whole circle, with something that lives across its end
    std::vector<Index> items;
    std::vector<Bytes> floor;
  };
  // What is known of a part once its floors are settled, by item of the part and by section.
  struct View {
    std::vector<Bytes> low, left;  // where an item begins at the lowest; what is left over a section
    std::vector<char> flat;        // whether the item could begin there on one floor
  };
  struct Choice {
    Index section = -1;
    Index options = 0;
    Bytes raised = FREE;  // the next floor if nothing begins on this one; FREE: not possible
  };

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  void cut_into_sections(const Lifetimes& lifetimes);
  void shuffle_keys();
  bool is_over();
  Answer solve(const Part& whole);
  Answer solve_part(Part part);
  Answer branch(const Part& part, const View& view, const Choice& choice);
  std::vector<Part> split(const Part& part) const;
  bool settle(Part& part, View& view);
  bool avoid_given(const Part& part, View& view) const;
  Choice choose(const Part& part, const View& view);
  Bytes raised(const Part& part, const View& view, Index section) const;
  Index first_section(const Part& part, Index item) const;
  bool covers(const Part& part, Index item, Index section) const;
  bool overlap(Index a, Index b) const;
  template <class Visit>
  void visit(const Part& part, Index item, Visit&& visit) const;

  Index circle_ = 0;                   // sections
  std::vector<Index> start_, length_;  // in sections, by buffer
  std::vector<char> endless_;          // lives at every tick of a circle
  std::vector<Bytes> size_, fixed_;
  Bytes capacity_;
  Random random_;
  SeenStates failed_;
  bool any_given_ = false;
  std::vector<double> key_;
  std::vector<Bytes> offsets_;
  Answer answer_ = Answer::open;
  std::int64_t work_ = 0, fine_work_ = 0, nodes_ = 0, tries_ = 0;
  std::int64_t node_limit_ = 0, work_limit_ = 0, first_try_;
  const std::function<void()>* poll_ = nullptr;
};

}  // namespace lowtide
