#include "order_search.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lowtide {

namespace {

constexpr std::int64_t SCANNED_PER_WORK = 1000;
constexpr std::int64_t PATIENCE = 400;  // changes without a better height before the order is disturbed

}  // namespace

OrderSearch::OrderSearch(const Lifetimes& lifetimes, std::vector<Index> order, Fit fit, std::uint64_t seed,
                         Bytes enough)
    : lifetimes_(&lifetimes), fit_(fit), random_(seed), enough_(enough), current_(lifetimes), trial_(lifetimes) {
  // Those with given offsets stand first: they are part of every prefix.
  const auto given = [&](Index i) { return lifetimes.fixed[at(i)] != FREE; };
  std::stable_partition(order.begin(), order.end(), given);
  free_ = static_cast<Index>(std::count_if(order.begin(), order.end(), [&](Index i) { return !given(i); }));
  order_ = trial_order_ = best_order_ = std::move(order);
  position_.resize(order_.size());
  keep_.resize(order_.size());
  for (std::size_t p = 0; p < order_.size(); ++p) position_[at(order_[p])] = static_cast<Index>(p);
  place_from(0, std::numeric_limits<Bytes>::max());
  current_excess_ = excess(trial_);
  std::swap(current_, trial_);
  best_height_ = current_.height();
  best_offsets_ = current_.offsets();
}

// Places trial_order_ from `position` on; false as soon as a buffer ends above `limit`.
bool OrderSearch::place_from(Index position, Bytes limit) {
  for (Index p = 0; p < static_cast<Index>(trial_order_.size()); ++p)
    keep_[at(trial_order_[at(p)])] = p < position;
  trial_.assign(current_, keep_);
  for (std::size_t p = at(position); p < trial_order_.size(); ++p) {
    const Index buffer = trial_order_[p];
    const Bytes given = lifetimes_->fixed[at(buffer)];
    fine_work_ += static_cast<std::int64_t>(trial_.items().size()) + 16;
    trial_.insert(buffer, given == FREE ? trial_.place_for(buffer, fit_) : given);
    if (trial_.top(buffer) > limit) return false;
  }
  return true;
}

double OrderSearch::excess(const Shelf& shelf) const {
  double sum = 0;
  for (Index i : shelf.items()) sum += static_cast<double>(std::max<Bytes>(0, shelf.top(i) - enough_));
  return sum;
}

// A buffer under `buffer` whose top is where that one begins; -1 if it lies at 0 or on nothing.
Index OrderSearch::below(Index buffer) {
  scratch_.clear();
  for (Index other : current_.items()) {
    if (current_.offset(other) >= current_.offset(buffer)) break;
    if (current_.top(other) == current_.offset(buffer) && lifetimes_->meet(buffer, other)) scratch_.push_back(other);
  }
  return scratch_.empty() ? -1 : scratch_[at(random_.below(static_cast<Index>(scratch_.size())))];
}

// One of the buffers that end above the target, or of those that carry it.
Index OrderSearch::pick_culprit() {
  const Bytes target = random_.below(4) == 0 ? enough_ : std::max(enough_, current_.height() - 1);
  scratch_.clear();
  for (Index i : current_.items())
    if (current_.top(i) > target) scratch_.push_back(i);
  Index culprit = scratch_[at(random_.below(static_cast<Index>(scratch_.size())))];
  while (random_.below(3) == 0) {
    const Index next = below(culprit);
    if (next < 0) break;
    culprit = next;
  }
  return culprit;
}

void OrderSearch::shift(Index from, Index to) {
  const auto begin = trial_order_.begin();
  if (to < from)
    std::rotate(begin + to, begin + from, begin + from + 1);
  else
    std::rotate(begin + from, begin + from + 1, begin + to + 1);
}

Bytes OrderSearch::limit() const {
  // A few tenths of a percent at first, nothing later.
  const Bytes slack = best_height_ / 256 >> std::min<std::int64_t>(30, since_ * 8 / PATIENCE);
  return best_height_ + slack;
}

bool OrderSearch::propose() {
  ++tried_;
  ++since_;
  const Index fixed = static_cast<Index>(order_.size()) - free_;
  const Index culprit = pick_culprit();
  const Index from = position_[at(culprit)];
  Index first;
  if (from < fixed) return false;  // a live block sets the height
  const Index dice = random_.below(100);
  if (dice < 70 && from > fixed) {
    Index to = fixed + random_.below(from - fixed);
    if (dice < 35) to = std::max(to, from - 1 - random_.below(std::max<Index>(1, std::min<Index>(from - fixed, 16))));
    shift(from, to);
    first = to;
  } else if (dice < 85) {
    const Index other = fixed + random_.below(free_);
    if (other == from) return false;
    std::swap(trial_order_[at(from)], trial_order_[at(other)]);
    first = std::min(from, other);
  } else {
    // What carries it goes later.
    const Index carrier = below(culprit);
    if (carrier < 0) return false;
    const Index at_now = position_[at(carrier)];
    if (at_now < fixed || at_now >= from) return false;
    shift(at_now, from);
    first = at_now;
  }
  const Bytes limit = this->limit();
  if (!place_from(first, limit)) return false;
  const double excess = this->excess(trial_);
  if (trial_.height() > current_.height() && trial_.height() > best_height_) return excess <= current_excess_;
  return trial_.height() < current_.height() || excess <= current_excess_;
}

void OrderSearch::accept() {
  ++kept_;
  std::swap(current_, trial_);
  order_ = trial_order_;
  for (std::size_t p = 0; p < order_.size(); ++p) position_[at(order_[p])] = static_cast<Index>(p);
  current_excess_ = excess(current_);
  if (current_.height() < best_height_) {
    best_height_ = current_.height();
    best_offsets_ = current_.offsets();
    best_order_ = order_;
    since_ = 0;
  }
}

// Back to the best order, with a few buffers put earlier.
void OrderSearch::disturb() {
  const Index fixed = static_cast<Index>(order_.size()) - free_;
  trial_order_ = best_order_;
  const Index moves = 2 + random_.below(6);
  for (Index i = 0; i < moves; ++i) shift(fixed + random_.below(free_), fixed + random_.below(free_));
  place_from(0, std::numeric_limits<Bytes>::max());
  accept();
  since_ = 0;
}

bool OrderSearch::run(std::int64_t work) {
  const std::int64_t until = work_ + work;
  while (!done() && work_ < until) {
    if (since_ >= PATIENCE) {
      disturb();
    } else if (propose()) {
      accept();
    } else {
      trial_order_ = order_;
      fine_work_ += 200;
    }
    work_ += fine_work_ / SCANNED_PER_WORK;
    fine_work_ %= SCANNED_PER_WORK;
  }
  return done();
}

bool OrderSearch::is_valid() const {
  if (!current_.is_valid() || order_.size() != lifetimes_->start.size()) return false;
  std::vector<Index> sorted = order_;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<Index>(i)) return false;
  return place_in_order(*lifetimes_, order_, fit_) == current_.offsets();
}

}  // namespace lowtide
