// OrderSearch: looks for an order of buffers that the packer turns into a low placement.
//
// A move takes a buffer of the stack that sets the height (one that ends above the target, or one below it that
// carries it) and puts it earlier in the order, or swaps two buffers; everything after the first changed position is
// placed again, and abandoned as soon as a buffer ends too high. A move is kept if the height does not rise above the
// best one by more than a tolerance that shrinks to nothing, and what lies above the target does not grow, at equal
// heights. After a while without success the search goes on from the best order, disturbed.
// The same seed and work give the same result, however run() is sliced. Deterministic: no clock.
// Invariant between calls: `current_` is what the packer makes of `order_`.
#pragma once
#include "packer.hpp"
#include "random.hpp"

namespace lowtide {

class OrderSearch {
 public:
  // Begins with the placement of `order`, which names every buffer once. Stops at a height of `enough`.
  OrderSearch(const Lifetimes& lifetimes, std::vector<Index> order, Fit fit, std::uint64_t seed, Bytes enough);
  // Spends at least `work` more; true when the height is enough or nothing can be moved.
  bool run(std::int64_t work);

  Bytes best_height() const { return best_height_; }
  const std::vector<Bytes>& best_offsets() const { return best_offsets_; }
  std::int64_t work() const { return work_; }  // in about 1,000 scanned buffers
  std::int64_t tried() const { return tried_; }
  std::int64_t kept() const { return kept_; }
  bool is_valid() const;

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  bool done() const { return best_height_ <= enough_ || free_ < 2; }
  bool propose();
  bool place_from(Index position, Bytes limit);
  Index pick_culprit();
  Index below(Index buffer);
  void shift(Index from, Index to);
  double excess(const Shelf& shelf) const;
  void accept();
  void disturb();
  Bytes limit() const;

  const Lifetimes* lifetimes_;
  Fit fit_;
  Random random_;
  Bytes enough_;
  Index free_ = 0;                     // buffers without a given offset
  std::vector<Index> order_, trial_order_, best_order_;
  std::vector<Index> position_;        // buffer -> place in trial_order_
  std::vector<char> keep_;             // scratch
  std::vector<Index> scratch_;
  Shelf current_, trial_;
  double current_excess_ = 0;
  Bytes best_height_ = 0;
  std::vector<Bytes> best_offsets_;
  std::int64_t work_ = 0, tried_ = 0, kept_ = 0, since_ = 0;
  std::int64_t fine_work_ = 0;         // scanned buffers not yet counted in work_
};

}  // namespace lowtide
