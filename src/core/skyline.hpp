// Skyline: what the exact search has built so far, from offset 0 up, and what it still may do.
//
// Every section has a floor, below which nothing more will be put. Every buffer that is not placed has a `low`, the
// lowest offset it can still have: the highest floor under it, or the top of a buffer with a given offset that it
// would otherwise reach into. A section is held by the buffers over it whose low is its floor.
// Invariant (settled, after every call that returned true), for every section with something left to place:
// - it is held by at least one buffer: a floor that nothing could begin on has been raised;
// - floor + what is left over it is within the capacity.
// After a call that returned false the state is of no use until undo() takes it back.
// Compiled with LOWTIDE_CHECK, every change is followed by is_valid(), and a break aborts.
// All changes are kept on a trail: undo() costs what they cost.
#pragma once
#include <utility>
#include <vector>

#include "sections.hpp"
#include "seen_states.hpp"

namespace lowtide {

class Skyline {
 public:
  Skyline(const Lifetimes& lifetimes, Bytes capacity);
  Skyline(const Skyline&) = delete;
  Skyline& operator=(const Skyline&) = delete;

  bool is_possible() const { return possible_; }  // whether the empty skyline is settled
  // Puts a buffer at its low; its floors must all be equal to it.
  bool place(Index buffer);
  // Nothing more begins below `floor` over this section.
  bool raise(Index section, Bytes floor);
  struct Mark {
    std::size_t bytes, indices, words;
  };
  Mark mark() const { return {bytes_trail_.size(), index_trail_.size(), word_trail_.size()}; }
  void undo(const Mark& mark);

  const Sections& sections() const { return sections_; }
  bool is_placed(Index buffer) const { return placed_[at(buffer)] != 0; }
  Bytes low(Index buffer) const { return low_[at(buffer)]; }  // the offset, once it is placed
  Bytes size(Index buffer) const { return size_[at(buffer)]; }
  Bytes given(Index buffer) const { return given_[at(buffer)]; }
  Bytes floor(Index section) const { return floor_[at(section)]; }
  Bytes capacity() const { return capacity_; }
  Bytes left(Index section) const { return left_[at(section)]; }
  Bytes slack(Index section) const { return capacity_ - floor_[at(section)] - left_[at(section)]; }
  Index held_by(Index section) const { return held_[at(section)]; }
  // How many buffers that are not placed live both in this section and in the next.
  Index crossing(Index section) const { return crossing_[at(section)]; }
  // Of what is left, and on which floors, in a run of sections that no buffer leaves.
  StateHash hash(Index first, Index steps) const;
  std::int64_t looks() const { return looks_; }  // at sections and buffers so far: the measure of work
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  void set(Bytes& place, Bytes value) {
    bytes_trail_.emplace_back(&place, place);
    place = value;
  }
  void set(Index& place, Index value) {
    index_trail_.emplace_back(&place, place);
    place = value;
  }
  void set_floor(Index section, Bytes floor);
  bool set_floors(Index first, Index steps, Bytes floor);
  bool lift(Index first, Index steps, Bytes floor);
  void let_go();
  void hold(Index first, Index steps, Bytes floor);
  bool hold_again(Index section);
  template <class Visit>
  void tally(const std::vector<Index>& buffers, Visit&& visit);
  void verify() const;
  Bytes past_given(Index buffer, Bytes low) const;

  Sections sections_;
  Bytes capacity_;
  std::vector<Bytes> size_, given_;    // by buffer
  std::vector<Index> live_blocks_;       // buffers with given offsets
  std::vector<Bytes> low_;             // by buffer
  std::vector<Index> placed_;          // by buffer
  std::vector<Bytes> floor_, left_;    // by section
  std::vector<Index> held_, crossing_;
  std::vector<StateHash> word_;        // by section: its floor, and what begins in it and is not placed
  // Scratch of set_floors().
  std::vector<Index> loose_;           // sections that lost their last holder
  std::vector<std::pair<Bytes, Index>> lifted_;  // buffers whose low went up, and what it was
  std::vector<Index> level_, others_;  // buffers whose low is now the new floor; and was it before
  std::vector<Index> group_, change_;
  std::vector<std::pair<Bytes*, Bytes>> bytes_trail_;
  std::vector<std::pair<Index*, Index>> index_trail_;
  std::vector<std::pair<Index, StateHash>> word_trail_;
  mutable std::int64_t looks_ = 0;
  bool possible_ = true;
};

}  // namespace lowtide
