#include "expect.hpp"
#include "packings.hpp"
#include "valley_search.hpp"

using namespace lowtide;

namespace {

void sections_keep_who_meets_whom() {
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const bool cyclic : {false, true}) {
      const Lifetimes all = examples::random(seed, 40, cyclic, 0);
      const Sections sections(all);
      EXPECT(sections.is_valid() && sections.count <= 40);
      for (Index a = 0; a < all.count(); ++a)
        for (Index b = 0; b < all.count(); ++b) {
          const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
          const bool meet =
              Lifetimes::meet(sections.start[i], sections.length[i], sections.start[j], sections.length[j], sections.count);
          EXPECT(all.meet(a, b) == meet);
          Index seen = 0;
          sections.meeting(sections.start[i], sections.length[i], [&](Index other) { seen += other == b; });
          EXPECT(seen == (meet ? 1 : 0));
        }
    }
}

// Places and raises at random, takes some of it back, and checks what the skyline says of itself all the while.
void a_skyline_can_be_taken_back() {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Lifetimes all = examples::random(seed, 30, seed % 2 == 0, static_cast<Index>(seed % 3) * 4);
    Skyline skyline(all, 100000);
    const Sections& sections = skyline.sections();
    EXPECT(skyline.is_possible() && skyline.is_valid());
    Random draw(seed);
    std::vector<Skyline::Mark> marks;
    std::vector<StateHash> states;
    for (int step = 0; step < 200; ++step) {
      std::vector<Index> flat;  // buffers that stand on one floor
      for (Index i = 0; i < all.count(); ++i) {
        bool even = !skyline.is_placed(i);
        sections.walk(sections.start[static_cast<std::size_t>(i)], sections.length[static_cast<std::size_t>(i)],
                      [&](Index s) { even = even && skyline.floor(s) == skyline.low(i); });
        if (even) flat.push_back(i);
      }
      const Index dice = draw.below(10);
      if (dice < 3 && !marks.empty()) {
        skyline.undo(marks.back());
        EXPECT(skyline.hash(0, sections.count) == states.back());
        marks.pop_back();
        states.pop_back();
      } else {
        const Skyline::Mark mark = skyline.mark();
        const StateHash state = skyline.hash(0, sections.count);
        const Index section = draw.below(sections.count);
        bool possible;
        if (dice < 8 && !flat.empty())
          possible = skyline.place(flat[static_cast<std::size_t>(draw.below(static_cast<Index>(flat.size())))]);
        else
          possible = skyline.raise(section, skyline.floor(section) + 1 + draw.below(5));
        if (possible) {
          marks.push_back(mark);
          states.push_back(state);
        } else {
          skyline.undo(mark);
        }
      }
      EXPECT(skyline.is_valid());
    }
  }
}

void what_fits_with_nothing_to_spare_is_found() {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Lifetimes all = examples::perfect(seed, 20 + 8 * seed);
    ValleySearch search(all, 64, seed);
    EXPECT(search.run(1000000, 1000000) == ValleySearch::Answer::fits);
    EXPECT(examples::is_legal(all, search.offsets(), 64));
    ValleySearch lower(all, 63, seed);
    EXPECT(lower.run(1000, 10) == ValleySearch::Answer::never);
  }
}

void few_tries_at_a_time_come_to_the_same() {
  const Lifetimes all = examples::perfect(5, 120);
  ValleySearch whole(all, 64, 1), sliced(all, 64, 1);
  EXPECT(whole.run(10000000, 10000) == ValleySearch::Answer::fits);
  while (sliced.run(10000000, 1) == ValleySearch::Answer::open) {
  }
  EXPECT(whole.nodes() == sliced.nodes() && whole.offsets() == sliced.offsets());
}

void answers_are_proofs() {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Lifetimes all = examples::random(seed, 9, seed % 2 == 0, seed % 3 == 0 ? 2 : 0);
    Bytes least = 0;  // the first capacity that is not refuted
    while (ValleySearch(all, least, seed).run(1000000, 100000) == ValleySearch::Answer::never) ++least;
    for (std::uint64_t other = 0; other < 3; ++other) {
      ValleySearch search(all, least, other);
      EXPECT(search.run(1000000, 100000) == ValleySearch::Answer::fits);
      EXPECT(examples::is_legal(all, search.offsets(), least));
      EXPECT(ValleySearch(all, least - 1, other).run(1000000, 100000) == ValleySearch::Answer::never);
    }
  }
}

void work_is_a_limit() {
  const Lifetimes all = examples::perfect(2, 200);
  ValleySearch search(all, 64, 0);
  std::int64_t polls = 0;
  EXPECT(search.run(1, 1000000, [&] { ++polls; }) == ValleySearch::Answer::open);
  EXPECT(search.work() < 20 && polls > 0);
}

}  // namespace

int main() {
  sections_keep_who_meets_whom();
  a_skyline_can_be_taken_back();
  what_fits_with_nothing_to_spare_is_found();
  few_tries_at_a_time_come_to_the_same();
  answers_are_proofs();
  work_is_a_limit();
  return TEST_RESULT;
}
