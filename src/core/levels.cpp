#include "levels.hpp"

namespace lowtide {

void Levels::reset(Index count, Bytes level, Bytes budget) {
  level_.assign(at(count), level);
  blocks_.assign((at(count) + SIZE - 1) / SIZE, Block{});
  stale_.clear();
  excess_ = 0;
  budget_ = budget;
  for (std::size_t b = 0; b < blocks_.size(); ++b) spoil(b);
}

void Levels::set_budget(Bytes budget) {
  budget_ = budget;
  for (std::size_t b = 0; b < blocks_.size(); ++b) spoil(b);
}

void Levels::spoil(std::size_t block) {
  if (blocks_[block].stale) return;
  blocks_[block].stale = true;
  stale_.push_back(block);
}

void Levels::add(Index first, Index last, Bytes size) {
  if (first > last) return;
  std::size_t t = at(first);
  const std::size_t stop = at(last) + 1;
  while (t < stop) {
    const std::size_t b = t / SIZE, end = stop_of(b);
    if (t % SIZE == 0 && end <= stop) {
      Block& block = blocks_[b];
      block.added += size;
      block.top += size;
      if (block.excess != 0 || block.top > budget_) spoil(b);
      t = end;
    } else {
      for (const std::size_t until = std::min(end, stop); t < until; ++t) level_[t] += size;
      spoil(b);
    }
  }
}

Levels::Block Levels::looked_up(std::size_t block) const {
  Block found = blocks_[block];
  Bytes top = level_[block * SIZE], excess = 0;
  const Bytes budget = budget_ - found.added;
  for (std::size_t t = block * SIZE; t < stop_of(block); ++t) {
    top = std::max(top, level_[t]);
    excess += std::max<Bytes>(0, level_[t] - budget);
  }
  found.top = top + found.added;
  found.excess = excess;
  found.stale = false;
  return found;
}

void Levels::refresh() const {
  for (std::size_t b : stale_) {
    const Block found = looked_up(b);
    excess_ += found.excess - blocks_[b].excess;
    blocks_[b] = found;
  }
  stale_.clear();
}

Bytes Levels::top() const {
  refresh();
  if (blocks_.empty()) return 0;
  Bytes top = blocks_[0].top;
  for (const Block& block : blocks_) top = std::max(top, block.top);
  return top;
}

Index Levels::top_stage() const {
  const Bytes top = this->top();
  for (std::size_t b = 0; b < blocks_.size(); ++b)
    if (blocks_[b].top == top)
      for (std::size_t t = b * SIZE; t < stop_of(b); ++t)
        if (level_[t] + blocks_[b].added == top) return static_cast<Index>(t);
  return 0;
}

Bytes Levels::excess() const {
  refresh();
  return excess_;
}

bool Levels::is_valid() const {
  Bytes excess = 0;
  std::size_t stale = 0;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Block found = looked_up(b);
    if (!blocks_[b].stale && (found.top != blocks_[b].top || found.excess != blocks_[b].excess)) return false;
    excess += blocks_[b].excess;
    stale += blocks_[b].stale ? 1 : 0;
  }
  return excess == excess_ && stale == stale_.size();
}

}  // namespace lowtide
