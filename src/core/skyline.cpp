#include "skyline.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace lowtide {

namespace {

// Stands for a buffer that is not placed.
StateHash buffer_word(Index buffer) { return StateHash::of(static_cast<std::uint64_t>(buffer) | 1ULL << 32, 0); }

}  // namespace

Skyline::Skyline(const Lifetimes& lifetimes, Bytes capacity)
    : sections_(lifetimes),
      capacity_(capacity),
      size_(lifetimes.size),
      given_(lifetimes.fixed),
      low_(size_.size(), 0),
      placed_(size_.size(), 0),
      floor_(at(sections_.count), 0),
      left_(floor_),
      held_(at(sections_.count), 0),
      crossing_(held_),
      word_(at(sections_.count)),
      change_(at(sections_.count) + 1, 0) {
  const auto count = static_cast<Index>(size_.size());
  for (Index i = 0; i < count; ++i) {
    if (given_[at(i)] != FREE) live_blocks_.push_back(i);
    const Index steps = sections_.length[at(i)];
    sections_.walk(sections_.start[at(i)], steps, [&](Index s) { left_[at(s)] += size_[at(i)]; });
    sections_.walk(sections_.start[at(i)], sections_.endless[at(i)] ? steps : steps - 1,
                   [&](Index s) { ++crossing_[at(s)]; });
  }
  for (Index i = 0; i < count; ++i) low_[at(i)] = given_[at(i)] == FREE ? past_given(i, 0) : given_[at(i)];
  for (Index s = 0; s < sections_.count; ++s) {
    word_[at(s)] = StateHash::of(static_cast<std::uint64_t>(s), 0);
    for (Index i : sections_.begins[s]) word_[at(s)] += buffer_word(i);
  }
  for (Index s = 0; s < sections_.count && possible_; ++s) possible_ = hold_again(s);
  bytes_trail_.clear();
  index_trail_.clear();
  word_trail_.clear();
}

// The lowest offset from `low` on at which a free buffer reaches into no given one that is still to come.
Bytes Skyline::past_given(Index buffer, Bytes low) const {
  for (bool again = true; again;) {
    again = false;
    for (Index other : live_blocks_) {
      const Bytes offset = given_[at(other)], top = offset + size_[at(other)];
      if (low >= top || low + size_[at(buffer)] <= offset || placed_[at(other)]) continue;
      if (!Lifetimes::meet(sections_.start[at(buffer)], sections_.length[at(buffer)], sections_.start[at(other)],
                           sections_.length[at(other)], sections_.count))
        continue;
      low = top;
      again = true;
    }
  }
  return low;
}

void Skyline::set_floor(Index section, Bytes floor) {
  const auto name = static_cast<std::uint64_t>(section);
  word_trail_.emplace_back(section, word_[at(section)]);
  word_[at(section)] -= StateHash::of(name, static_cast<std::uint64_t>(floor_[at(section)]));
  word_[at(section)] += StateHash::of(name, static_cast<std::uint64_t>(floor));
  set(floor_[at(section)], floor);
}

// Raises a floor to the lowest beginning over it. No low changes with it: all of them are at least as high.
bool Skyline::hold_again(Index section) {
  if (left_[at(section)] == 0) return true;
  Bytes lowest = std::numeric_limits<Bytes>::max();
  Index holders = 0;
  for (Index i : sections_.over[section]) {
    if (placed_[at(i)] || low_[at(i)] > lowest) continue;
    holders = low_[at(i)] == lowest ? holders + 1 : 1;
    lowest = low_[at(i)];
  }
  looks_ += sections_.over[section].size();
  set_floor(section, lowest);
  set(held_[at(section)], holders);
  return slack(section) >= 0;
}

// Calls visit(section, how many of the buffers live in it) where some do. O(buffers + sections between them).
template <class Visit>
void Skyline::tally(const std::vector<Index>& buffers, Visit&& visit) {
  Index low = sections_.count, high = 0;
  for (Index i : buffers) {
    const Index start = sections_.start[at(i)], stop = start + sections_.length[at(i)];
    ++change_[at(start)];
    if (stop > sections_.count) {
      ++change_[0];
      --change_[at(stop - sections_.count)];
      low = 0;
      high = sections_.count;
    } else {
      --change_[at(stop)];
      low = std::min(low, start);
      high = std::max(high, stop);
    }
  }
  Index live = 0;
  for (Index s = low; s < high; ++s) {
    live += change_[at(s)];
    change_[at(s)] = 0;
    if (live > 0) visit(s, live);
  }
  change_[at(high)] = 0;
  looks_ += high - low + static_cast<Index>(buffers.size());
}

// Raises the lows of what lives in a run to its new floor; false if one with a given offset prevents it.
bool Skyline::lift(Index first, Index steps, Bytes floor) {
  lifted_.clear();
  level_.clear();
  others_.clear();
  bool possible = true;
  sections_.meeting(first, steps, [&](Index i) {
    ++looks_;
    const Bytes low = low_[at(i)];
    if (placed_[at(i)] || low > floor) return;
    if (low == floor) {
      others_.push_back(i);
    } else if (given_[at(i)] != FREE) {
      possible = false;
    } else {
      lifted_.emplace_back(low, i);
    }
  });
  if (!possible) return false;
  std::sort(lifted_.begin(), lifted_.end());
  for (const auto& [before, i] : lifted_) {
    set(low_[at(i)], live_blocks_.empty() ? floor : past_given(i, floor));
    if (low_[at(i)] == floor) level_.push_back(i);
  }
  return true;
}

// Takes the lifted buffers off the sections that they held.
void Skyline::let_go() {
  for (std::size_t k = 0; k < lifted_.size();) {
    const Bytes before = lifted_[k].first;
    group_.clear();
    for (; k < lifted_.size() && lifted_[k].first == before; ++k) group_.push_back(lifted_[k].second);
    tally(group_, [&](Index s, Index buffers) {
      if (floor_[at(s)] != before) return;
      set(held_[at(s)], held_[at(s)] - buffers);
      if (held_[at(s)] == 0) loose_.push_back(s);
    });
  }
}

// Puts the buffers whose low is the new floor on the sections that have it.
void Skyline::hold(Index first, Index steps, Bytes floor) {
  tally(level_, [&](Index s, Index buffers) {
    if (floor_[at(s)] == floor) set(held_[at(s)], held_[at(s)] + buffers);
  });
  tally(others_, [&](Index s, Index buffers) {
    const Index ahead = s - first;
    if ((ahead < 0 ? ahead + sections_.count : ahead) < steps) set(held_[at(s)], held_[at(s)] + buffers);
  });
  if (level_.size() == lifted_.size()) return;
  for (const auto& lifted : lifted_) {  // those that went past a given offset, onto a floor of its own
    const Index i = lifted.second;
    if (low_[at(i)] == floor) continue;
    sections_.walk(sections_.start[at(i)], sections_.length[at(i)], [&](Index s) {
      if (floor_[at(s)] == low_[at(i)]) set(held_[at(s)], held_[at(s)] + 1);
    });
  }
}

// Gives a run of sections the same floor, which is no lower than any of theirs, and settles.
bool Skyline::set_floors(Index first, Index steps, Bytes floor) {
  constexpr Bytes CHANGING = -2;  // no low is equal to it
  loose_.clear();
  sections_.walk(first, steps, [&](Index s) {
    set_floor(s, floor);
    floor_[at(s)] = CHANGING;
    set(held_[at(s)], 0);
  });
  if (!lift(first, steps, floor)) return false;
  let_go();
  sections_.walk(first, steps, [&](Index s) { floor_[at(s)] = floor; });
  hold(first, steps, floor);
  bool possible = true;
  sections_.walk(first, steps, [&](Index s) {
    if (held_[at(s)] == 0)
      loose_.push_back(s);
    else
      possible = possible && slack(s) >= 0;
  });
  looks_ += 3 * steps;
  for (std::size_t k = 0; k < loose_.size() && possible; ++k)
    if (held_[at(loose_[k])] == 0) possible = hold_again(loose_[k]);
  if (possible) verify();
  return possible;
}

bool Skyline::place(Index buffer) {
  const Index first = sections_.start[at(buffer)], steps = sections_.length[at(buffer)];
  set(placed_[at(buffer)], 1);
  word_trail_.emplace_back(first, word_[at(first)]);
  word_[at(first)] -= buffer_word(buffer);
  sections_.walk(first, steps, [&](Index s) { set(left_[at(s)], left_[at(s)] - size_[at(buffer)]); });
  sections_.walk(first, sections_.endless[at(buffer)] ? steps : steps - 1,
                 [&](Index s) { set(crossing_[at(s)], crossing_[at(s)] - 1); });
  return set_floors(first, steps, low_[at(buffer)] + size_[at(buffer)]);
}

bool Skyline::raise(Index section, Bytes floor) { return set_floors(section, 1, floor); }

void Skyline::undo(const Mark& mark) {
  for (; bytes_trail_.size() > mark.bytes; bytes_trail_.pop_back())
    *bytes_trail_.back().first = bytes_trail_.back().second;
  for (; index_trail_.size() > mark.indices; index_trail_.pop_back())
    *index_trail_.back().first = index_trail_.back().second;
  for (; word_trail_.size() > mark.words; word_trail_.pop_back())
    word_[at(word_trail_.back().first)] = word_trail_.back().second;
  verify();
}

StateHash Skyline::hash(Index first, Index steps) const {
  StateHash hash;
  sections_.walk(first, steps, [&](Index s) { hash += word_[at(s)]; });
  looks_ += steps;
  return hash;
}

void Skyline::verify() const {
#ifdef LOWTIDE_CHECK
  if (is_valid()) return;
  std::fputs("lowtide: the skyline's invariant does not hold\n", stderr);
  std::abort();
#endif
}

bool Skyline::is_valid() const {
  for (Index s = 0; s < sections_.count; ++s) {
    Bytes left = 0;
    Index holders = 0, crossing = 0;
    StateHash word = StateHash::of(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(floor_[at(s)]));
    for (Index i : sections_.begins[s])
      if (!placed_[at(i)]) word += buffer_word(i);
    if (!(word == word_[at(s)])) return false;
    for (Index i : sections_.over[s]) {
      if (placed_[at(i)]) continue;
      left += size_[at(i)];
      if (low_[at(i)] < floor_[at(s)]) return false;
      holders += low_[at(i)] == floor_[at(s)];
      const bool last = (s - sections_.start[at(i)] + sections_.count) % sections_.count == sections_.length[at(i)] - 1;
      crossing += !last || sections_.endless[at(i)];
    }
    if (left != left_[at(s)] || crossing != crossing_[at(s)]) return false;
    if (left > 0 && (holders == 0 || holders != held_[at(s)] || slack(s) < 0)) return false;
  }
  return true;
}

}  // namespace lowtide
