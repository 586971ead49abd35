// Spans at stake: the address range as a search for a window sees it.
#pragma once
#include <limits>
#include <vector>

#include "../capacity.hpp"
#include "arena_window.hpp"

namespace lowtide::eager {

class SpansAtStake {
 public:
  // `mind` says what it costs to evict a value; infinite: it is not evicted, as bytes of nobody are not.
  template <class Mind>
  void read(const Capacity& capacity, const Mind& mind) {
    capacity.pieces(pieces_);
    stretches_.clear();
    for (const Piece& piece : pieces_) {
      const Bytes size_B = piece.size_B();
      if (piece.hole)
        stretches_.push_back({size_B, 0, 0});
      else
        stretches_.push_back({size_B, piece.value == NO_VALUE ? INFINITE_COST : mind(piece.value), size_B});
    }
  }
  // O(pieces).
  Run cheapest(Bytes need_B) { return cheapest_run(stretches_, need_B, sums_); }
  // The least bytes that sliding moves to make a hole of need_B, once the values that leave are gone; -1: none does.
  template <class Leaves, class Movable>
  Bytes moved_for(Bytes need_B, const Leaves& leaves, const Movable& movable) {
    slid_.clear();
    for (const Piece& piece : pieces_) {
      const Bytes size_B = piece.size_B();
      if (piece.hole || (piece.value != NO_VALUE && leaves(piece.value)))
        slid_.push_back({size_B, 0, 0});
      else
        slid_.push_back({0, piece.value != NO_VALUE && movable(piece.value) ? static_cast<double>(size_B) : INFINITE_COST, 0});
    }
    const Run run = cheapest_run(slid_, need_B, sums_);
    return run.found() ? static_cast<Bytes>(run.cost) : -1;
  }
  // The values of a run, by address; nothing where none was found.
  void name(const Run& run, std::vector<ValueId>& victims) const {
    if (!run.found()) return;
    for (std::size_t i = run.first; i <= run.last; ++i)
      if (!pieces_[i].hole) victims.push_back(pieces_[i].value);
  }

 private:
  static constexpr double INFINITE_COST = std::numeric_limits<double>::infinity();
  std::vector<Piece> pieces_;
  std::vector<Stretch> stretches_, slid_;
  std::vector<double> sums_;
};

}  // namespace lowtide::eager
