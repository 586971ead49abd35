#include "valley_search.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace lowtide {

namespace {

constexpr Bytes ENDLESS = std::numeric_limits<Bytes>::max();
constexpr std::int64_t FIRST_TRY = 150;  // choices that turn out wrong
constexpr std::int64_t NODES_PER_POLL = 256;
constexpr unsigned TABLE_BITS = 18;

// 1 1 2 1 1 2 4 1 1 2 ...: how long the i-th try is, i >= 1 (Luby, Sinclair and Zuckerman, 1993).
std::int64_t luby(std::int64_t i) {
  std::int64_t power = 1;
  while (power - 1 < i) power *= 2;
  return power - 1 == i ? power / 2 : luby(i - (power / 2 - 1));
}

}  // namespace

ValleySearch::ValleySearch(const Lifetimes& lifetimes, Bytes capacity, std::uint64_t seed)
    : lifetimes_(&lifetimes),
      skyline_(lifetimes, capacity),
      random_(seed),
      failed_(TABLE_BITS) {}

// The parts of a run that share no buffer, without the sections that nothing is left over; short ones first.
std::vector<ValleySearch::Run> ValleySearch::split(const Run& run) const {
  const Sections& sections = skyline_.sections();
  Run arc = run;
  if (run.ring) {
    Index cut = 0;
    while (cut < run.steps && skyline_.crossing(cut) != 0) ++cut;
    if (cut == run.steps) return {run};
    arc = Run{sections.next(cut), run.steps, false};
  }
  std::vector<Run> parts;
  bool open = false;
  sections.walk(arc.first, arc.steps, [&](Index s) {
    if (skyline_.left(s) == 0) return;
    if (open)
      ++parts.back().steps;
    else
      parts.push_back(Run{s, 1, false});
    open = skyline_.crossing(s) != 0;
  });
  std::stable_sort(parts.begin(), parts.end(), [](const Run& a, const Run& b) { return a.steps < b.steps; });
  return parts;
}

// The section of a valley to decide on. Tries take turns: the fewest possibilities first, then the least slack; or the
// least slack times possibilities beyond one, then the fewest. The first is better where nothing is to spare, the
// second where it is scarce in some sections only.
ValleySearch::Choice ValleySearch::choose(const Run& part) const {
  const Index count = skyline_.sections().count;
  const auto section = [&](Index step) {
    const Index s = part.first + step;
    return s < count ? s : s - count;
  };
  const auto floor = [&](Index step) { return skyline_.floor(section(step)); };
  Index turn = 0;  // a ring is read from the foot of a cliff, so that no valley is cut in two
  if (part.ring)
    while (turn < part.steps && floor(turn) == floor(turn == 0 ? part.steps - 1 : turn - 1)) ++turn;
  turn = turn == part.steps ? 0 : turn;
  Bytes before = part.ring && turn > 0 ? floor(turn - 1) : part.ring ? floor(part.steps - 1) : ENDLESS;
  if (part.ring && before == floor(turn)) before = ENDLESS;  // one valley all round
  Choice best;
  std::pair<Bytes, Bytes> least{ENDLESS, ENDLESS};
  for (Index i = 0; i < part.steps;) {
    const auto step = [&](Index k) { return turn + k < part.steps ? turn + k : turn + k - part.steps; };
    const Bytes here = floor(step(i));
    Index end = i + 1;
    while (end < part.steps && floor(step(end)) == here) ++end;
    const Bytes after = end < part.steps ? floor(step(end)) : part.ring && end - i < part.steps ? floor(turn) : ENDLESS;
    if (before > here && after > here) {
      for (; i < end; ++i) {
        const Index s = section(step(i));
        const Bytes slack = skyline_.slack(s);
        const Bytes options = skyline_.held_by(s) + (slack > 0 ? 1 : 0);
        const std::pair<Bytes, Bytes> rank =
            tries_ % 2 == 0 ? std::pair{options, slack} : std::pair{slack * (options - 1), options};
        if (rank < least) {
          best = Choice{s, slack > 0};
          least = rank;
        }
      }
    }
    i = end;
    before = here;
  }
  return best;
}

// The buffers that could begin on a section's floor, in the order of their keys; of equal ones only the first.
std::vector<Index> ValleySearch::options(Index section) const {
  const Sections& sections = skyline_.sections();
  std::vector<Index> options;
  for (Index i : sections.over[section]) {
    if (skyline_.is_placed(i) || skyline_.low(i) != skyline_.floor(section)) continue;
    const bool twin = std::any_of(options.begin(), options.end(), [&](Index other) {
      return sections.start[at(i)] == sections.start[at(other)] && skyline_.size(i) == skyline_.size(other) &&
             sections.length[at(i)] == sections.length[at(other)] && skyline_.given(i) == skyline_.given(other);
    });
    if (!twin) options.push_back(i);
  }
  std::stable_sort(options.begin(), options.end(), [&](Index a, Index b) { return key_[at(a)] > key_[at(b)]; });
  return options;
}

// The next floor of a valley's section if none of the buffers that could begin on this one does. Such a buffer would
// then lie on another one of the valley, which is not over this section.
Bytes ValleySearch::next_floor(Index section) const {
  const Sections& sections = skyline_.sections();
  const Bytes floor = skyline_.floor(section);
  Bytes next = ENDLESS;
  for (Index i : sections.over[section]) {
    if (skyline_.is_placed(i)) continue;
    if (skyline_.low(i) > floor) {
      next = std::min(next, skyline_.low(i));
    } else if (skyline_.given(i) == FREE) {
      sections.meeting(sections.start[at(i)], sections.length[at(i)], [&](Index under) {
        if (skyline_.is_placed(under) || sections.covers(under, section)) return;
        next = std::min(next, skyline_.low(under) + skyline_.size(under));
      });
    }
  }
  return next;
}

// Whether the try, or the work, has come to its end.
bool ValleySearch::is_over() {
  if (nodes_ % NODES_PER_POLL == 0) (*poll_)();
  return fails_ >= fail_limit_ || work() >= work_limit_;
}

// All parts fit, or one of them never does. The skyline keeps what was placed; the caller takes it back.
ValleySearch::Answer ValleySearch::solve(const Run& run) {
  for (const Run& part : split(run)) {
    const Answer answer = solve_part(part);
    if (answer != Answer::fits) return answer;
  }
  return Answer::fits;
}

ValleySearch::Answer ValleySearch::solve_part(const Run& part) {
  std::vector<StateHash> states;  // this one, and those with a floor raised
  bool possible = true;
  while (possible) {
    if (is_over()) return Answer::open;
    ++nodes_;
    looks_ += LOOKS_PER_NODE + 3 * part.steps;
    states.push_back(skyline_.hash(part.first, part.steps));
    if (failed_.has(states.back())) break;
    const Choice choice = choose(part);
    for (Index option : options(choice.section)) {
      const Skyline::Mark mark = skyline_.mark();
      const Answer answer = skyline_.place(option) ? solve(part) : Answer::never;
      if (answer != Answer::never) return answer;
      skyline_.undo(mark);
      ++fails_;
    }
    possible = false;
    if (choice.raisable) {
      const Bytes next = next_floor(choice.section);
      possible = next != ENDLESS && next + skyline_.left(choice.section) <= skyline_.capacity() &&
                 skyline_.raise(choice.section, next);
    }
  }
  for (const StateHash& state : states) failed_.add(state);
  return Answer::never;
}

// What to try first: the largest areas, the largest sizes, both, the longest lifetimes in turn, from the second round on
// disturbed by up to a factor of five.
void ValleySearch::shuffle_keys() {
  const Sections& sections = skyline_.sections();
  key_.resize(sections.start.size());
  for (std::size_t i = 0; i < key_.size(); ++i) {
    const auto size = static_cast<double>(lifetimes_->size[i]), length = static_cast<double>(sections.length[i]);
    switch (tries_ / 2 % 4) {
      case 0: key_[i] = size * length; break;
      case 1: key_[i] = size; break;
      case 2: key_[i] = size * size * length; break;
      default: key_[i] = length * 1e9 + size; break;
    }
    if (tries_ >= 8) key_[i] *= (0.25 + random_.unit()) / (0.25 + random_.unit());
  }
}

ValleySearch::Answer ValleySearch::run(std::int64_t work, std::int64_t tries, const std::function<void()>& poll) {
  poll_ = &poll;
  work_limit_ = this->work() + work;
  if (!skyline_.is_possible()) answer_ = Answer::never;
  const Skyline::Mark start = skyline_.mark();
  const std::int64_t last = tries_ + tries;
  while (answer_ == Answer::open && tries_ < last && this->work() < work_limit_) {
    shuffle_keys();
    ++tries_;
    fail_limit_ = fails_ + FIRST_TRY * luby(tries_);
    answer_ = solve(Run{0, skyline_.sections().count, true});
    if (answer_ != Answer::fits) skyline_.undo(start);
  }
  return answer_;
}

std::vector<Bytes> ValleySearch::offsets() const {
  std::vector<Bytes> offsets;
  for (Index i = 0; i < lifetimes_->count(); ++i) offsets.push_back(skyline_.low(i));
  return offsets;
}

}  // namespace lowtide
