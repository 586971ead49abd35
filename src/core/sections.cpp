#include "sections.hpp"

#include <algorithm>

namespace lowtide {

namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// Whether a tick begins a section: something begins there, and at the next tick where anything changes, something
// ends. What is live elsewhere is live at one of these ticks too.
std::vector<Index> sections_before(const Lifetimes& lifetimes) {
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
  std::vector<Index> before(at(period) + 1, 0);
  for (std::size_t e = 0; e < events.size(); ++e)
    before[at(events[e]) + 1] = begins[at(events[e])] && ends[at(events[(e + 1) % events.size()])];
  for (std::size_t t = 1; t < before.size(); ++t) before[t] += before[t - 1];
  return before;
}

}  // namespace

Sections::Sections(const Lifetimes& lifetimes) {
  const std::vector<Index> before = sections_before(lifetimes);
  const Index period = lifetimes.period;
  count = std::max<Index>(1, before.back());
  std::vector<std::vector<Index>> over_rows(at(count)), begin_rows(at(count));
  for (Index i = 0; i < lifetimes.count(); ++i) {
    const Index from = lifetimes.start[at(i)], to = from + lifetimes.length[at(i)];
    const Index inside = to <= period ? before[at(to)] - before[at(from)]
                                      : before[at(period)] - before[at(from)] + before[at(to - period)];
    endless.push_back(lifetimes.length[at(i)] == period);
    start.push_back(before[at(from)] % count);
    length.push_back(endless.back() ? count : inside);
    begin_rows[at(start.back())].push_back(i);
    walk(start.back(), length.back(), [&](Index s) { over_rows[at(s)].push_back(i); });
  }
  for (Index s = 0; s < count; ++s) {
    over.push_row(over_rows[at(s)]);
    begins.push_row(begin_rows[at(s)]);
  }
}

bool Sections::is_valid() const {
  if (count < 1 || over.size() != count || begins.size() != count || !over.is_valid() || !begins.is_valid()) return false;
  for (std::size_t i = 0; i < start.size(); ++i)
    if (start[i] < 0 || start[i] >= count || length[i] < 1 || length[i] > count) return false;
  return true;
}

}  // namespace lowtide
