#include "valley_search.hpp"

#include <algorithm>
#include <limits>

namespace lowtide {

namespace {

constexpr Bytes ENDLESS = std::numeric_limits<Bytes>::max();
constexpr std::int64_t FIRST_TRY = 300;         // nodes, and one per buffer
constexpr std::int64_t LOOKS_PER_WORK = 1000;
constexpr std::int64_t NODES_PER_POLL = 64;
constexpr unsigned TABLE_BITS = 18;

// 1 1 2 1 1 2 4 1 1 2 ...: how long the i-th try is, i >= 1 (Luby, Sinclair and Zuckerman, 1993).
std::int64_t luby(std::int64_t i) {
  std::int64_t power = 1;
  while (power - 1 < i) power *= 2;
  return power - 1 == i ? power / 2 : luby(i - (power / 2 - 1));
}

}  // namespace

ValleySearch::ValleySearch(const Lifetimes& lifetimes, Bytes capacity, std::uint64_t seed)
    : size_(lifetimes.size),
      fixed_(lifetimes.fixed),
      capacity_(capacity),
      random_(seed),
      failed_(TABLE_BITS),
      offsets_(lifetimes.size.size(), 0),
      first_try_(FIRST_TRY + lifetimes.count()) {
  cut_into_sections(lifetimes);
  any_given_ = std::any_of(fixed_.begin(), fixed_.end(), [](Bytes fixed) { return fixed != FREE; });
}

// Keeps a tick only if something begins there and something ends right after it, of the ticks where either happens:
// what is live at any other is live at one of these too.
void ValleySearch::cut_into_sections(const Lifetimes& lifetimes) {
  const Index period = lifetimes.period;
  std::vector<char> begins(at(period), 0), ends(at(period), 0);
  for (Index i = 0; i < lifetimes.count(); ++i) {
    if (lifetimes.length[at(i)] == period) continue;
    begins[at(lifetimes.start[at(i)])] = 1;
    ends[at((lifetimes.start[at(i)] + lifetimes.length[at(i)]) % period)] = 1;
  }
  std::vector<Index> events;
  for (Index t = 0; t < period; ++t)
    if (begins[at(t)] || ends[at(t)]) events.push_back(t);
  std::vector<Index> before(at(period) + 1, 0);  // kept sections that begin before a tick
  for (std::size_t e = 0; e < events.size(); ++e)
    before[at(events[e]) + 1] = begins[at(events[e])] && ends[at(events[(e + 1) % events.size()])];
  for (std::size_t t = 1; t < before.size(); ++t) before[t] += before[t - 1];
  circle_ = std::max<Index>(1, before.back());
  for (Index i = 0; i < lifetimes.count(); ++i) {
    const Index start = lifetimes.start[at(i)], stop = start + lifetimes.length[at(i)];
    const Index kept = stop <= period ? before[at(stop)] - before[at(start)]
                                      : before[at(period)] - before[at(start)] + before[at(stop - period)];
    start_.push_back(before[at(start)] % circle_);
    endless_.push_back(lifetimes.length[at(i)] == period);
    length_.push_back(endless_.back() ? circle_ : kept);
  }
}

// Calls visit(first, last) for the one or two runs of the part's sections in which the item lives.
template <class Visit>
void ValleySearch::visit(const Part& part, Index item, Visit&& visit) const {
  const auto sections = static_cast<Index>(part.floor.size());
  const Index first = first_section(part, item), last = first + length_[at(item)];
  visit(at(first), at(std::min(last, sections)));
  if (last > sections) visit(std::size_t{0}, at(last - sections));
}

Index ValleySearch::first_section(const Part& part, Index item) const {
  const Index first = start_[at(item)] - part.begin;
  return first < 0 ? first + circle_ : first;
}

bool ValleySearch::covers(const Part& part, Index item, Index section) const {
  Index ahead = section + part.begin - start_[at(item)];
  ahead %= circle_;
  if (ahead < 0) ahead += circle_;
  return ahead < length_[at(item)];
}

bool ValleySearch::overlap(Index a, Index b) const {
  return Lifetimes::meet(start_[at(a)], length_[at(a)], start_[at(b)], length_[at(b)], circle_);
}

// The parts of what is left that share no section.
std::vector<ValleySearch::Part> ValleySearch::split(const Part& part) const {
  const std::size_t sections = part.floor.size();
  std::vector<Index> crossing(sections + 1, 0), covering(sections + 1, 0);
  bool ring = false;
  for (Index item : part.items) {
    Index runs = 0;
    visit(part, item, [&](std::size_t first, std::size_t last) {
      ++covering[first], --covering[last], ++crossing[first], --crossing[last - 1];
      ++runs;
    });
    if (runs == 2 || endless_[at(item)]) {  // it goes on behind the last section
      ++crossing[sections - 1], --crossing[sections];
      ring = true;
    }
  }
  for (std::size_t s = 1; s < sections; ++s) {
    crossing[s] += crossing[s - 1];
    covering[s] += covering[s - 1];
  }
  std::size_t turn = 0;
  if (ring) {
    while (turn < sections && crossing[turn] != 0) ++turn;
    if (turn == sections) {
      std::vector<Part> whole{part};
      whole.front().ring = true;
      return whole;
    }
    turn = (turn + 1) % sections;
  }
  std::vector<Part> parts;
  std::vector<Index> part_at(sections, 0);
  bool open = false;
  for (std::size_t i = 0; i < sections; ++i) {
    const std::size_t s = (turn + i) % sections;
    if (covering[s] == 0) continue;
    if (!open) {
      parts.emplace_back();
      parts.back().begin = (part.begin + static_cast<Index>(s)) % circle_;
    }
    parts.back().floor.push_back(part.floor[s]);
    part_at[s] = static_cast<Index>(parts.size()) - 1;
    open = crossing[s] != 0;
  }
  for (Index item : part.items) {
    parts[at(part_at[at(first_section(part, item))])].items.push_back(item);
  }
  return parts;
}

// Lets no free item begin where it would reach into one with a given offset that is still to come.
bool ValleySearch::avoid_given(const Part& part, View& view) const {
  for (std::size_t g = 0; g < part.items.size(); ++g) {
    const Index given = part.items[g];
    if (fixed_[at(given)] == FREE) continue;
    if (view.low[g] > fixed_[at(given)]) return false;
    view.low[g] = fixed_[at(given)];
  }
  for (bool again = true; again;) {
    again = false;
    for (Index given : part.items) {
      const Bytes offset = fixed_[at(given)], top = offset + size_[at(given)];
      if (offset == FREE) continue;
      for (std::size_t i = 0; i < part.items.size(); ++i) {
        const Index item = part.items[i];
        if (fixed_[at(item)] != FREE || view.low[i] >= top || view.low[i] + size_[at(item)] <= offset) continue;
        if (!overlap(item, given)) continue;
        view.low[i] = top;
        again = true;
      }
    }
  }
  return true;
}

// Raises floors and beginnings until nothing changes; false if a section overflows.
bool ValleySearch::settle(Part& part, View& view) {
  const std::size_t sections = part.floor.size();
  view.low.resize(part.items.size());
  view.left.assign(sections, 0);
  for (Index item : part.items)
    visit(part, item, [&](std::size_t first, std::size_t last) {
      for (std::size_t s = first; s < last; ++s) view.left[s] += size_[at(item)];
    });
  std::vector<Bytes> lowest(sections);
  for (bool again = true; again;) {
    for (std::size_t i = 0; i < part.items.size(); ++i) {
      Bytes low = 0;
      visit(part, part.items[i], [&](std::size_t first, std::size_t last) {
        for (std::size_t s = first; s < last; ++s) low = std::max(low, part.floor[s]);
        fine_work_ += static_cast<std::int64_t>(last - first);
      });
      view.low[i] = low;
    }
    if (any_given_ && !avoid_given(part, view)) return false;
    std::fill(lowest.begin(), lowest.end(), ENDLESS);
    for (std::size_t i = 0; i < part.items.size(); ++i)
      visit(part, part.items[i], [&](std::size_t first, std::size_t last) {
        const Bytes low = view.low[i];
        for (std::size_t s = first; s < last; ++s) lowest[s] = std::min(lowest[s], low);
      });
    again = false;
    for (std::size_t s = 0; s < sections; ++s) {
      again |= lowest[s] > part.floor[s];
      part.floor[s] = lowest[s];
      if (lowest[s] + view.left[s] > capacity_) return false;
    }
    fine_work_ += static_cast<std::int64_t>(sections + part.items.size());
  }
  view.flat.assign(part.items.size(), 1);
  for (std::size_t i = 0; i < part.items.size(); ++i)
    visit(part, part.items[i], [&](std::size_t first, std::size_t last) {
      for (std::size_t s = first; s < last && view.flat[i]; ++s) view.flat[i] = part.floor[s] == view.low[i];
    });
  return true;
}

// The next floor of a valley's section if none of the items that could begin on this one does.
Bytes ValleySearch::raised(const Part& part, const View& view, Index section) const {
  const Bytes floor = part.floor[at(section)];
  Bytes raised = ENDLESS;
  for (std::size_t i = 0; i < part.items.size(); ++i) {
    const Index item = part.items[i];
    if (!covers(part, item, section)) continue;
    if (view.low[i] > floor) {
      raised = std::min(raised, view.low[i]);
    } else if (fixed_[at(item)] == FREE) {
      // It would lie on another one of the valley, which is not over this section.
      for (std::size_t j = 0; j < part.items.size(); ++j) {
        const Index under = part.items[j];
        if (view.low[j] + size_[at(under)] < raised && overlap(item, under) && !covers(part, under, section))
          raised = view.low[j] + size_[at(under)];
      }
    }
  }
  return raised;
}

// The section of a valley with the fewest possibilities.
ValleySearch::Choice ValleySearch::choose(const Part& part, const View& view) {
  const auto sections = static_cast<Index>(part.floor.size());
  std::vector<Index> options(at(sections), 0);
  for (std::size_t i = 0; i < part.items.size(); ++i)
    if (view.flat[i])
      visit(part, part.items[i], [&](std::size_t first, std::size_t last) {
        for (std::size_t s = first; s < last; ++s) ++options[s];
      });
  const auto floor = [&](Index s) { return part.floor[at((s + sections) % sections)]; };
  Index turn = 0;  // where to begin: at the foot of a cliff, so that no run of equal floors is cut in two
  while (part.ring && turn < sections && floor(turn - 1) == floor(turn)) ++turn;
  turn = turn == sections ? 0 : turn;
  Choice best;
  best.options = std::numeric_limits<Index>::max();
  for (Index i = 0; i < sections;) {
    const Index first = turn + i;
    Index last = first;
    while (last < turn + sections && floor(last) == floor(first)) ++last;
    i = last - turn;
    const bool whole = last - first == sections;
    const bool open_left = !whole && (part.ring || first > 0) && floor(first - 1) < floor(first);
    const bool open_right = !whole && (part.ring || last < sections) && floor(last) < floor(first);
    if (open_left || open_right) continue;
    for (Index s = first; s < last; ++s) {
      const Index section = s % sections;
      if (options[at(section)] >= best.options) continue;
      const Bytes raised = this->raised(part, view, section);
      fine_work_ += static_cast<std::int64_t>(part.items.size());
      const bool possible = raised != ENDLESS && raised + view.left[at(section)] <= capacity_;
      const Index total = options[at(section)] + (possible ? 1 : 0);
      if (total < best.options) best = Choice{section, total, possible ? raised : FREE};
    }
  }
  return best;
}

ValleySearch::Answer ValleySearch::branch(const Part& part, const View& view, const Choice& choice) {
  std::vector<std::size_t> options;
  for (std::size_t i = 0; i < part.items.size(); ++i) {
    const Index item = part.items[i];
    if (!view.flat[i] || !covers(part, item, choice.section)) continue;
    const bool twin = std::any_of(options.begin(), options.end(), [&](std::size_t other) {
      const auto a = at(item), b = at(part.items[other]);
      return start_[a] == start_[b] && length_[a] == length_[b] && size_[a] == size_[b] && fixed_[a] == fixed_[b];
    });
    if (!twin) options.push_back(i);
  }
  std::stable_sort(options.begin(), options.end(), [&](std::size_t a, std::size_t b) {
    return key_[at(part.items[a])] > key_[at(part.items[b])];
  });
  for (std::size_t option : options) {
    const Index item = part.items[option];
    Part rest = part;
    rest.items.erase(rest.items.begin() + static_cast<std::ptrdiff_t>(option));
    offsets_[at(item)] = view.low[option];
    visit(part, item, [&](std::size_t first, std::size_t last) {
      for (std::size_t s = first; s < last; ++s) rest.floor[s] = view.low[option] + size_[at(item)];
    });
    const Answer answer = solve(rest);
    if (answer != Answer::never) return answer;
  }
  if (choice.raised == FREE) return Answer::never;
  Part higher = part;
  higher.floor[at(choice.section)] = choice.raised;
  return solve_part(std::move(higher));
}

// Whether the try, or the work, has come to its end.
bool ValleySearch::is_over() {
  if (fine_work_ >= LOOKS_PER_WORK) {
    work_ += fine_work_ / LOOKS_PER_WORK;
    fine_work_ %= LOOKS_PER_WORK;
  }
  if (nodes_ % NODES_PER_POLL == 0) (*poll_)();
  return nodes_ >= node_limit_ || work_ >= work_limit_;
}

ValleySearch::Answer ValleySearch::solve_part(Part part) {
  if (is_over()) return Answer::open;
  ++nodes_;
  View view;
  if (!settle(part, view)) return Answer::never;
  StateHash hash;
  hash.add(static_cast<std::uint64_t>(part.begin));
  for (Index item : part.items) hash.add(static_cast<std::uint64_t>(item));
  for (Bytes floor : part.floor) hash.add(static_cast<std::uint64_t>(floor));
  if (failed_.has(hash)) return Answer::never;
  const Choice choice = choose(part, view);
  const Answer answer = choice.options == 0 ? Answer::never : branch(part, view, choice);
  if (answer == Answer::never) failed_.add(hash);
  return answer;
}

// All parts fit, or one of them never does.
ValleySearch::Answer ValleySearch::solve(const Part& whole) {
  std::vector<Part> parts = split(whole);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.items.size() < b.items.size(); });
  for (Part& part : parts) {
    const Answer answer = solve_part(std::move(part));
    if (answer != Answer::fits) return answer;
  }
  return Answer::fits;
}

// What to try first: the large, the long, the heavy in turn, from the second round on disturbed by up to a third.
void ValleySearch::shuffle_keys() {
  key_.resize(size_.size());
  for (std::size_t i = 0; i < key_.size(); ++i) {
    const auto size = static_cast<double>(size_[i]), length = static_cast<double>(length_[i]);
    switch (tries_ % 4) {
      case 0: key_[i] = size * length; break;
      case 1: key_[i] = length * 1e9 + size; break;
      case 2: key_[i] = size; break;
      default: key_[i] = size * size * length; break;
    }
    if (tries_ >= 4) key_[i] *= (0.5 + random_.unit()) / (0.5 + random_.unit());
  }
}

ValleySearch::Answer ValleySearch::run(std::int64_t work, const std::function<void()>& poll) {
  poll_ = &poll;
  work_limit_ = work_ + work;
  while (answer_ == Answer::open && work_ < work_limit_) {
    shuffle_keys();
    ++tries_;
    node_limit_ = nodes_ + first_try_ * luby(tries_);
    Part whole;
    whole.floor.assign(at(circle_), 0);
    for (Index i = 0; i < static_cast<Index>(size_.size()); ++i) whole.items.push_back(i);
    answer_ = solve(whole);
  }
  return answer_;
}

}  // namespace lowtide
