#include "chain_table.hpp"

#include <algorithm>

namespace lowtide {

namespace {

constexpr float NO = 1e30F;  // sums of a few of them are finite

}  // namespace

bool ChainCosts::is_valid() const {
  const std::size_t n = run.size();
  if (alone.size() != n || running.size() != n || reversing.size() != n || behind.size() != n || held.size() != n * n ||
      option_begin.size() != n + 1 || option_begin.front() != 0)
    return false;
  const std::size_t options = option_saved.size();
  if (option_running.size() != options || option_reversing.size() != options || option_time.size() != options ||
      option_begin.back() != static_cast<Index>(options) || !std::is_sorted(option_begin.begin(), option_begin.end()))
    return false;
  const auto negative = [](auto x) { return x < 0; };
  return std::none_of(held.begin(), held.end(), negative) && std::none_of(running.begin(), running.end(), negative) &&
         std::none_of(reversing.begin(), reversing.end(), negative) &&
         std::none_of(behind.begin(), behind.end(), negative) &&
         std::none_of(option_saved.begin(), option_saved.end(), negative) &&
         std::none_of(option_running.begin(), option_running.end(), negative) &&
         std::none_of(option_reversing.begin(), option_reversing.end(), negative);
}

ChainTable::ChainTable(ChainCosts costs, Index slots) : costs_(std::move(costs)), slots_(slots) {
  const Index count = costs_.links();
  ahead_.assign(at(count) + 1, 0);
  for (Index k = 0; k < count; ++k) ahead_[at(k) + 1] = ahead_[at(k)] + costs_.run[at(k)];
  time_.assign(place(0, count) * at(slots_ + 1), NO);
  for (Index length = 0; length < count; ++length)
    for (Index first = 0; first + length < count; ++first) fill(first, first + length);
}

// A choice >= 0 is an option of link first; -1 - s is a split in front of link s; a lone link has the choice 0.
template <class Visit>
void ChainTable::choices(Index first, Index last, Visit&& visit) const {
  const ChainCosts& c = costs_;
  const Index count = c.links(), beyond = c.behind[at(last)];
  if (first == last) {
    // The last link runs before any backward; others only as far as `reversing` says.
    const Index need = std::max(c.reversing[at(first)], last + 1 == count ? c.running[at(first)] : 0);
    visit(Index{0}, c.alone[at(first)], need, static_cast<const float*>(nullptr), Index{0},
          static_cast<const float*>(nullptr));
    return;
  }
  for (Index o = c.option_begin[at(first)]; o < c.option_begin[at(first) + 1]; ++o) {
    const Index need = std::max(c.option_reversing[at(o)], c.option_running[at(o)] + beyond);
    visit(o, c.run[at(first)] + c.option_time[at(o)], need, row(first + 1, last), c.option_saved[at(o)],
          static_cast<const float*>(nullptr));
  }
  Index through = 0, passed = first;
  for (Index s = first + 1; s <= last; s += s - first < NEAR || last - s < STRIDE ? 1 : STRIDE) {
    for (; passed < s; ++passed)
      through = std::max(through, c.held[at(first) * at(count) + at(passed)] + c.running[at(passed)]);
    visit(-1 - s, ahead_[at(s)] - ahead_[at(first)], through + beyond, row(s, last),
          c.held[at(first) * at(count) + at(s)], row(first, s - 1));
  }
}

void ChainTable::fill(Index first, Index last) {
  float* best = row(first, last);
  choices(first, last, [&](Index, Picos picos, Index need, const float* behind, Index less, const float* before) {
    const float time = static_cast<float>(picos);
    const Index m = std::max(need, less);
    if (m > slots_) return;
    const std::size_t count = at(slots_ - m) + 1;
    float* to = best + m;
    const float* b = behind ? behind + (m - less) : nullptr;
    const float* a = before ? before + m : nullptr;
    if (!b) {
      for (std::size_t i = 0; i < count; ++i) to[i] = std::min(to[i], time);
    } else if (!a) {
      for (std::size_t i = 0; i < count; ++i) to[i] = std::min(to[i], time + b[i]);
    } else {
      for (std::size_t i = 0; i < count; ++i) to[i] = std::min(to[i], time + b[i] + a[i]);
    }
  });
}

Index ChainTable::least() const {
  if (costs_.links() == 0) return -1;
  const float* whole = row(0, costs_.links() - 1);
  for (Index m = 0; m <= slots_; ++m)
    if (whole[m] < NO) return m;
  return -1;
}

ChainPlan ChainTable::decode(Index slots) const {
  const std::size_t count = at(costs_.links());
  ChainPlan plan{std::vector<Index>(count, ChainPlan::NOT), std::vector<Index>(count, ChainPlan::NOT),
                 std::vector<Index>(count, ChainPlan::NOT)};
  struct Stretch {
    Index first, last, free, cut_point;
  };
  std::vector<Stretch> stack{{0, costs_.links() - 1, slots, ChainPlan::FROM_START}};
  while (!stack.empty()) {
    const auto [first, last, free, cut_point] = stack.back();
    stack.pop_back();
    if (first == last) continue;
    float least = NO;
    Index chosen = 0, left = 0;
    const Index m = free;
    choices(first, last, [&](Index choice, Picos picos, Index need, const float* behind, Index less,
                             const float* before) {
      if (m < std::max(need, less)) return;
      const float time = static_cast<float>(picos) + behind[m - less] + (before ? before[m] : 0.0F);
      if (time >= least) return;
      least = time;
      chosen = choice;
      left = m - less;
    });
    if (chosen >= 0) {
      plan.option[at(first)] = chosen - costs_.option_begin[at(first)];
      plan.saved_from[at(first)] = plan.crossing_from[at(first)] = cut_point;
      stack.push_back({first + 1, last, left, cut_point});
    } else {
      const Index s = -1 - chosen;
      plan.crossing_from[at(s - 1)] = cut_point;
      stack.push_back({s, last, left, cut_point});
      stack.push_back({first, s - 1, m, s - 1});
    }
  }
  return plan;
}

bool ChainTable::is_valid() const {
  for (Index last = 0; last < costs_.links(); ++last)
    for (Index first = 0; first <= last; ++first)
      for (Index m = 0; m < slots_; ++m)
        if (row(first, last)[m + 1] > row(first, last)[m]) return false;
  return costs_.is_valid();
}

}  // namespace lowtide
