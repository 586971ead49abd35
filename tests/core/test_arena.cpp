#include "arena.hpp"

#include <limits>
#include <stdexcept>

#include "arena_window.hpp"
#include "expect.hpp"

using namespace lowtide;

namespace {

constexpr double PINNED = std::numeric_limits<double>::infinity();

template <class Call>
bool is_refused(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

bool any(const Block&) { return true; }
bool move(Bytes, Bytes, Bytes) { return true; }

void best_fit_takes_the_smallest_hole_that_is_enough() {
  Arena arena(1024, 64);
  EXPECT(arena.allocate(192) == 0);    // becomes a hole of 192
  EXPECT(arena.allocate(64) == 192);
  EXPECT(arena.allocate(128) == 256);  // becomes a hole of 128
  EXPECT(arena.allocate(64) == 384);
  EXPECT(arena.allocate(128) == 448);  // becomes a hole of 128
  EXPECT(arena.allocate(64) == 576);
  for (Bytes offset_B : {0, 256, 448}) EXPECT(arena.free(offset_B) > 0);
  EXPECT(arena.allocate(100) == 256);  // the lower of two equal ones
  EXPECT(arena.free(256) == 100);
  EXPECT(arena.allocate(100, 0, 1024, End::high) == 448);  // the higher
  EXPECT(arena.free(448) == 100);
  EXPECT(arena.allocate(64, 0, 1024, End::high) == 512);  // carved from the high end of the hole
  EXPECT(arena.allocate(64, 200, 330, End::low) == 256);  // bounds are clipped inwards, to 256 .. 320
}

void ranges_clip_holes() {
  Arena arena(1024, 64);
  EXPECT(arena.allocate(64, 130, 1024, End::low) == 192);
  EXPECT(arena.allocate(64, 0, 1000, End::high) == 128);    // 0 .. 192 is smaller than 256 .. 960
  EXPECT(arena.allocate(128, 100, 320, End::low) == -1);    // nothing but 256 .. 320
  EXPECT(arena.statistics().failures_for_capacity == 1);
  EXPECT(arena.allocate(192, 0, 320, End::low) == -1);      // 0 .. 128 and 256 .. 320: enough, in pieces
  EXPECT(arena.statistics().failures_for_contiguity == 1);
  EXPECT(arena.allocate(1, 500, 400, End::low) == -1 && arena.allocate(1, -50, 0, End::low) == -1);
}

void sizes_are_rounded_and_remembered() {
  Arena arena(1000, 64);
  EXPECT(arena.capacity_B() == 960);
  EXPECT(arena.allocate(0, 7) == 0 && arena.allocate(0) == 64 && arena.allocate(65) == 128);
  EXPECT(arena.size_of(0) == 0 && arena.size_of(128) == 65 && arena.size_of(129) == -1 && !arena.contains(192));
  const ArenaStatistics s = arena.statistics();
  EXPECT(s.in_use_B == 256 && s.requested_B == 65 && s.blocks == 3 && s.holes == 1 && s.largest_hole_B == 704);
  EXPECT(arena.blocks()[0].tag == 7 && arena.set_tag(0, 9) && arena.blocks()[0].tag == 9 && !arena.set_tag(1, 1));
  EXPECT(arena.allocate(std::numeric_limits<Bytes>::max()) == -1);
  EXPECT(arena.free(0) == 0 && arena.free(0) == -1 && arena.free(-64) == -1 && arena.free(1 << 20) == -1);
}

void mistakes_are_refused() {
  EXPECT(is_refused([] { Arena(1024, 0); }) && is_refused([] { Arena(1024, 48); }));
  EXPECT(is_refused([] { Arena(63, 64); }) && is_refused([] { Arena(std::numeric_limits<Bytes>::max(), 64); }));
  Arena arena(1024, 64);
  EXPECT(is_refused([&] { (void)arena.allocate(-1); }) && is_refused([&] { (void)arena.allocate_at(1, 64); }));
  EXPECT(arena.allocate(64) == 0);
  const auto not_a_number = [](const Block&) { return std::numeric_limits<double>::quiet_NaN(); };
  EXPECT(is_refused([&] { (void)arena.cheapest_window(1024, 0, 1024, not_a_number); }));
  EXPECT(is_refused([&] { (void)arena.cheapest_window(1024, 0, 1024, [](const Block&) { return -1.0; }); }));
  EXPECT(arena.check().empty() && arena.free(0) == 64);  // the mutex was released each time
}

void planned_offsets_are_served_or_refused() {
  Arena arena(1024, 64);
  Block found{};
  EXPECT(arena.allocate_at(512, 100, 3) && arena.find(639, found) && found.offset_B == 512 && found.tag == 3);
  EXPECT(!arena.find(640, found) && !arena.find(-1, found) && !arena.find(1024, found) && found.tag == 3);
  EXPECT(!arena.allocate_at(576, 1) && !arena.allocate_at(448, 65) && arena.allocate_at(448, 64));
  EXPECT(!arena.allocate_at(960, 65) && !arena.allocate_at(1024, 1) && !arena.allocate_at(-64, 1));
  EXPECT(arena.statistics().refusals == 5);
}

void reach_is_kept_for_each_side() {
  Arena arena(1024, 64);
  const Bytes low = arena.allocate(128), high = arena.allocate(64, 0, 1024, End::high);
  EXPECT(low == 0 && high == 960);
  EXPECT(arena.allocate_at(128, 128) && arena.free(128) == 128);
  ArenaStatistics s = arena.statistics();
  EXPECT(s.low_high_B == 256 && s.top_depth_B == 64 && s.high_water_B == 320 && s.peak_in_use_B == 320);
  arena.reset_peaks();
  s = arena.statistics();
  EXPECT(s.low_high_B == 128 && s.top_depth_B == 64 && s.peak_in_use_B == 192);
  arena.compact(0, 1024, any, move);  // the high block now ends at 192: that reaches less far than from the top
  s = arena.statistics();
  EXPECT(s.low_high_B == 192 && s.top_depth_B == 64 && arena.contains(128));
}

void a_window_minds_small_costs_beside_large_ones() {
  // Sums by subtraction would lose the two small costs behind the large one, and call both windows free.
  const std::vector<Stretch> stretches{{1, 1e18, 1}, {1, 3e-3, 1}, {1, 2e-3, 1}, {1, 1e-3, 1}};
  const Run run = cheapest_run(stretches, 2);
  EXPECT(run.first == 2 && run.last == 3 && run.cost > 2.9e-3 && run.cost < 3.1e-3);
  EXPECT(!cheapest_run(stretches, 5).found() && !cheapest_run({}, 1).found());
  EXPECT(!cheapest_run({{9, PINNED, 0}}, 1).found());
}

void a_window_is_a_hole_once_evicted() {
  Arena arena(640, 64);
  for (std::uint64_t tag = 0; tag < 10; ++tag) EXPECT(arena.allocate(64, tag) >= 0);
  arena.free(128);
  const auto cost = [](const Block& b) { return b.tag == 5 ? PINNED : static_cast<double>(b.tag); };
  const Window window = arena.cheapest_window(150, 60, 640, cost);
  EXPECT(window.lo_B == 64 && window.hi_B == 256 && window.cost == 4 && window.evicted_B == 128);
  EXPECT(window.evicted.size() == 2 && window.evicted[0].tag == 1 && window.evicted[1].tag == 3);
  EXPECT(!arena.cheapest_window(330, 0, 640, cost).found());  // the pinned block leaves 320 below it
  for (const Block& b : window.evicted) arena.free(b.offset_B);
  EXPECT(arena.allocate(150, window.lo_B, window.hi_B, End::low) == 64);
}

void sliding_moves_as_little_as_it_can() {
  Arena arena(1024, 64);
  for (Bytes size_B : {64, 256, 64, 64, 64, 512}) EXPECT(arena.allocate(size_B) >= 0);
  for (Bytes offset_B : {0, 320, 448}) EXPECT(arena.free(offset_B) == 64);  // 64 free, 256, 64 free, 64, 64 free, 512
  std::vector<Bytes> moved;
  const auto relocate = [&](Bytes from_B, Bytes to_B, Bytes size_B) {
    moved.insert(moved.end(), {from_B, to_B, size_B});
    return true;
  };
  EXPECT(arena.slide_for(64, 0, 1024, any, relocate).hole_B == 0 && moved.empty());
  const Slide slid = arena.slide_for(128, 0, 1024, any, relocate);
  EXPECT(slid.hole_B == 384 && slid.moved_B == 64 && slid.moves == 1);
  EXPECT((moved == std::vector<Bytes>{384, 320, 64}));
  EXPECT(arena.slide_for(193, 0, 1024, any, relocate).hole_B == -1 && moved.size() == 3);  // no sliding helps
}

void a_refusal_pins_and_another_slide_is_found() {
  Arena arena(640, 64);
  for (std::uint64_t tag = 0; tag < 10; ++tag) EXPECT(arena.allocate(64, tag) >= 0);
  for (Bytes offset_B : {0, 128, 448, 640 - 64}) EXPECT(arena.free(offset_B) == 64);  // _1_3456_8_
  const auto refusing = [](Bytes from_B, Bytes, Bytes) { return from_B != 64; };
  const Slide slid = arena.slide_for(128, 0, 640, any, refusing);
  EXPECT(slid.hole_B == 512 && slid.moves == 1 && arena.contains(64) && arena.contains(448));
  EXPECT(arena.slide_for(128, 0, 640, any, [](Bytes, Bytes, Bytes) { return false; }).hole_B == 512);
}

void a_throwing_relocation_leaves_the_arena_whole() {
  Arena arena(640, 64);
  for (int i = 0; i < 4; ++i) EXPECT(arena.allocate(64) >= 0);
  arena.free(0);
  int calls = 0;
  const auto throwing = [&](Bytes, Bytes, Bytes) -> bool {
    if (++calls == 2) throw std::invalid_argument("no");
    return true;
  };
  EXPECT(is_refused([&] { arena.compact(0, 640, any, throwing); }));
  EXPECT(arena.check().empty() && arena.contains(0) && !arena.contains(64) && arena.contains(128));
}

void holes_are_visited_in_order() {
  Arena arena(640, 64);
  EXPECT(arena.allocate_at(64, 64) && arena.allocate_at(256, 64));
  std::vector<Bytes> ends;
  arena.visit_holes([&](Bytes lo_B, Bytes hi_B) { ends.insert(ends.end(), {lo_B, hi_B}); });
  EXPECT((ends == std::vector<Bytes>{0, 64, 128, 256, 320, 640}));
  EXPECT(arena.in_use_within(128, 256).blocks == 0 && arena.in_use_within(100, 300).in_use_B == 28 + 44);
}

}  // namespace

int main() {
  best_fit_takes_the_smallest_hole_that_is_enough();
  ranges_clip_holes();
  sizes_are_rounded_and_remembered();
  mistakes_are_refused();
  planned_offsets_are_served_or_refused();
  reach_is_kept_for_each_side();
  a_window_minds_small_costs_beside_large_ones();
  a_window_is_a_hole_once_evicted();
  sliding_moves_as_little_as_it_can();
  a_refusal_pins_and_another_slide_is_found();
  a_throwing_relocation_leaves_the_arena_whole();
  holes_are_visited_in_order();
  return TEST_RESULT;
}
