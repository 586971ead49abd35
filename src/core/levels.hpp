// Levels: live bytes per stage, with additions to runs of stages, the highest level and the bytes above a budget.
//
// Stages lie in blocks. An addition to a whole block is noted once for the block, so that a long run costs as many
// steps as it has blocks; what a block's highest level and excess are is looked up again only when it was touched in
// a manner that does not tell.
//
// INVARIANT (is_valid): the level of t is level_[t] + the block's `added`; a block that is not stale has the highest of
// its levels as `top` and the sum of what exceeds the budget as `excess`; `excess_` is the sum over blocks of `excess`;
// `stale_` lists the stale blocks, each once.
// Not thread-safe, not even to read: queries bring blocks up to date.
#pragma once
#include <algorithm>
#include <vector>

#include "rows.hpp"

namespace lowtide {

class Levels {
 public:
  // `count` stages at one level.
  void reset(Index count, Bytes level, Bytes budget);
  void set_budget(Bytes budget);
  // Adds to every stage of [first, last].
  void add(Index first, Index last, Bytes size);

  Bytes operator[](Index stage) const { return level_[at(stage)] + blocks_[at(stage) / SIZE].added; }
  Index count() const { return static_cast<Index>(level_.size()); }
  Bytes top() const;        // the highest level; 0 without stages
  Index top_stage() const;  // the first stage that has it
  Bytes excess() const;     // sum over stages of max(0, level - budget)
  bool is_valid() const;

 private:
  static constexpr std::size_t SIZE = 64;
  struct Block {
    Bytes added = 0, top = 0, excess = 0;
    bool stale = false;
  };

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  std::size_t stop_of(std::size_t block) const { return std::min(level_.size(), (block + 1) * SIZE); }
  void spoil(std::size_t block);
  Block looked_up(std::size_t block) const;
  void refresh() const;

  std::vector<Bytes> level_;
  mutable std::vector<Block> blocks_;
  mutable std::vector<std::size_t> stale_;
  mutable Bytes excess_ = 0;
  Bytes budget_ = 0;
};

}  // namespace lowtide
