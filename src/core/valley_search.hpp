// ValleySearch: decides whether buffers fit within a capacity, and where.
//
// A placement is built from offset 0 up on a skyline (skyline.hpp). A valley is a run of sections with equal floors
// between higher ones. In a placement whose buffers are all pushed down as far as they go, the lowest buffer to come
// over a section of a valley either begins on that floor, and then its whole life lies in the valley, or it begins at
// a known higher one. A node chooses a section with few such possibilities, or little slack, and tries each: no
// placement is met twice, and if there is any, one is met.
// - The skyline keeps floor + what is left over every section within the capacity: without slack few choices remain.
// - What is left falls into runs of sections that share no buffer: each is solved alone, so that a failure in one
//   repeats no other.
// - Failed states (what is left, on which floors) are remembered by hash, in a table of fixed size.
// - Restarts: each try may take back few choices, with the possibilities in the order of a key (area, lifetime, size)
//   that is disturbed at random; a few tries are longer, and some day one is long enough for a complete search.
// Buffers with given offsets are part of what is left to place, at one beginning only.
// The same seed and work give the same result. Deterministic: no clock. Recursion goes one level per buffer.
//
// Sources: the search in canonical order with what is left above the floors is due to M. D. Moffitt, "MiniMalloc",
// ASPLOS 2023; the choice of the section, the raising of floors, the table and the restarts are our own.
#pragma once
#include <functional>
#include <vector>

#include "random.hpp"
#include "seen_states.hpp"
#include "skyline.hpp"

namespace lowtide {

class ValleySearch {
 public:
  enum class Answer { open, fits, never };

  ValleySearch(const Lifetimes& lifetimes, Bytes capacity, std::uint64_t seed);
  // Makes at most `tries` more, until `work` more is spent or the answer is known. Calls `poll` now and then; it may
  // throw, and the search is of no use then.
  Answer run(std::int64_t work, std::int64_t tries, const std::function<void()>& poll = [] {});

  Answer answer() const { return answer_; }
  std::vector<Bytes> offsets() const;  // a placement, if it fits
  std::int64_t work() const { return (skyline_.looks() + looks_) / LOOKS_PER_WORK; }
  std::int64_t nodes() const { return nodes_; }
  std::int64_t tries() const { return tries_; }
  const Skyline& skyline() const { return skyline_; }

 private:
  static constexpr std::int64_t LOOKS_PER_WORK = 500;  // roughly a microsecond
  static constexpr std::int64_t LOOKS_PER_NODE = 500;  // roughly what a node takes whatever its size
  // Sections first, first + 1, ... on the circle; a ring is all of them, with a buffer across every border.
  struct Run {
    Index first, steps;
    bool ring;
  };
  struct Choice {
    Index section = -1;
    bool raisable = false;  // whether the floor may go up if nothing begins on it
  };

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  void shuffle_keys();
  bool is_over();
  Answer solve(const Run& run);
  Answer solve_part(const Run& part);
  std::vector<Run> split(const Run& run) const;
  Choice choose(const Run& part) const;
  std::vector<Index> options(Index section) const;
  Bytes next_floor(Index section) const;

  const Lifetimes* lifetimes_;
  Skyline skyline_;
  Random random_;
  SeenStates failed_;
  std::vector<double> key_;  // by buffer: larger ones are tried first
  Answer answer_ = Answer::open;
  std::int64_t nodes_ = 0, tries_ = 0, looks_ = 0;
  std::int64_t fails_ = 0, fail_limit_ = 0, work_limit_ = 0;
  const std::function<void()>* poll_ = nullptr;
};

}  // namespace lowtide
