#include <numeric>

#include "expect.hpp"
#include "packings.hpp"
#include "order_search.hpp"
#include "packer.hpp"

using namespace lowtide;

namespace {

std::vector<Index> shuffled(Index count, std::uint64_t seed) {
  Random draw(seed);
  std::vector<Index> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (Index i = count - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(draw.below(i + 1))]);
  return order;
}

void any_order_gives_a_legal_placement() {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const bool cyclic : {false, true})
      for (const Fit fit : {Fit::first, Fit::best}) {
        const Lifetimes all = examples::random(seed, 150, cyclic, static_cast<Index>(seed % 4) * 5);
        EXPECT(all.is_valid());
        const std::vector<Bytes> offsets = place_in_order(all, shuffled(150, seed), fit);
        EXPECT(examples::is_legal(all, offsets, examples::height(all, offsets)));
      }
}

void best_fit_takes_the_smallest_gap_and_first_fit_the_lowest() {
  Lifetimes all;
  all.period = 8;
  for (const auto& [size, fixed] : {std::pair<Bytes, Bytes>{1, 5}, {1, 8}}) examples::add(all, 0, 3, size, fixed);
  examples::add(all, 1, 1, 2);
  EXPECT(place_in_order(all, {0, 1, 2}, Fit::first).back() == 0);
  EXPECT(place_in_order(all, {0, 1, 2}, Fit::best).back() == 6);
  all.size.back() = 6;
  EXPECT(place_in_order(all, {2, 1, 0}, Fit::best).back() == 9);
}

void a_shelf_keeps_its_order() {
  const Lifetimes all = examples::random(3, 100, true, 0);
  Shelf shelf(all), copy(all);
  std::vector<char> keep(100, 0);
  for (Index i = 0; i < 100; ++i) {
    shelf.insert(i, shelf.place_for(i, Fit::first));
    keep[static_cast<std::size_t>(i)] = i % 3 == 0;
  }
  EXPECT(shelf.is_valid());
  copy.assign(shelf, keep);
  EXPECT(copy.is_valid() && copy.items().size() == 34 && copy.offset(1) == FREE);
  copy.clear();
  EXPECT(copy.is_valid() && copy.height() == 0);
}

void the_order_search_is_the_same_however_it_is_sliced() {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Lifetimes all = examples::random(seed, 80, seed % 2 == 0, seed > 1 ? 5 : 0);
    OrderSearch whole(all, shuffled(80, seed), Fit::first, seed, 1), sliced(all, shuffled(80, seed), Fit::first, seed, 1);
    const Bytes before = whole.best_height();
    whole.run(300);
    while (sliced.work() < whole.work()) sliced.run(1);
    EXPECT(whole.is_valid() && sliced.is_valid());
    EXPECT(whole.tried() == sliced.tried() && whole.best_offsets() == sliced.best_offsets());
    EXPECT(examples::is_legal(all, whole.best_offsets(), whole.best_height()) && whole.best_height() <= before);
  }
}

void the_order_search_stops_when_good_enough() {
  const Lifetimes all = examples::random(1, 30, false, 0);
  OrderSearch search(all, shuffled(30, 1), Fit::best, 0, 1 << 20);
  EXPECT(search.run(1000) && search.tried() == 0);
}

}  // namespace

int main() {
  any_order_gives_a_legal_placement();
  best_fit_takes_the_smallest_gap_and_first_fit_the_lowest();
  a_shelf_keeps_its_order();
  the_order_search_is_the_same_however_it_is_sliced();
  the_order_search_stops_when_good_enough();
  return TEST_RESULT;
}
