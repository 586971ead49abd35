// Arenas on real memory, without torch: planned places, zones and lives, from one thread and from many at once.
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "expect.hpp"
#include "slabs.hpp"
#include "thread.hpp"

using namespace lowtide;
using namespace lowtide::shim;

namespace {

constexpr Bytes KiB = 1024;

#ifdef LOWTIDE_CHECK
constexpr int TURNS = 300;
#else
constexpr int TURNS = 5000;
#endif

Slab* open(Bytes capacity_B, Bytes small_zone_B = 0, Bytes persistent_B = 0) {
  return Slab::open({capacity_B, 64, small_zone_B, persistent_B, false});
}

std::shared_ptr<const Table> table() {
  return std::make_shared<Table>(std::vector<Bytes>{1024, 2048, 512}, std::vector<Bytes>{0, 1024, 4096},
                                 std::vector<std::int64_t>{0, 2, 3}, std::vector<std::string>{"first", "second"}, 64);
}

void* asked(Bytes size_B) {
  Thread& thread = Thread::mine();
  return thread.slab()->serve(size_B, thread.run());
}

void test_places() {
  Slab* slab = open(64 * KiB, 4 * KiB, 8 * KiB);
  slab->set_plan_top(8 * KiB);
  Thread& thread = Thread::mine();
  thread.engage(slab);
  thread.enter(table());
  thread.at(0);
  void* small = asked(100);
  void* a = asked(1024);
  void* b = asked(2048);
  void* extra = asked(2048);
  thread.at(1);
  void* c = asked(512);
  EXPECT(thread.leave() == 3);
  EXPECT(slab->offset_of(a) == 0 && slab->offset_of(b) == 1024 && slab->offset_of(c) == 4096);
  EXPECT(slab->offset_of(small) == 64 * KiB - 128);
  EXPECT(slab->offset_of(extra) == 52 * KiB - 2048);
  EXPECT(slab->misplaced_allocations().size() == 1 && text_of(slab->misplaced_allocations()[0].name) == "first");
  void* zone = slab->serve_persistent(1000);
  EXPECT(slab->offset_of(zone) == 60 * KiB - 1024);
  for (void* p : {small, a, b, extra, c, zone}) slab->release(p);
  EXPECT(slab->arena().statistics().in_use_B == 0);
  thread.disengage(slab);
  slab->let_go();
}

void test_order_of_engagements() {
  Slab *one = open(4 * KiB), *other = open(4 * KiB);
  Thread& thread = Thread::mine();
  for (Slab* slab : {one, other, one, one}) thread.engage(slab);
  EXPECT(thread.slab() == one && slabs().for_workers() == one && thread.levels() == 3);
  thread.disengage(other);
  EXPECT(thread.slab() == one && thread.levels() == 1 && one->engagements() == 3);
  for (int i = 0; i < 3; ++i) thread.disengage(one);
  EXPECT(thread.slab() == nullptr && slabs().for_workers() == nullptr);
  bool is_refused = false;
  try {
    thread.disengage(one);
  } catch (const std::logic_error&) {
    is_refused = true;
  }
  EXPECT(is_refused);
  one->let_go();
  other->let_go();
}

void test_life() {
  Slab* slab = open(4 * KiB);
  Thread::mine().engage(slab);
  void* p = asked(1000);
  slab->close();
  EXPECT(slab->is_open());
  Thread::mine().disengage(slab);
  EXPECT(!slab->is_open());
  EXPECT(slab->serve(1000, nullptr) == nullptr);
  EXPECT(slabs().owner_of(p) == slab);
  std::memset(p, 1, 1000);
  slab->release(p);
  EXPECT(slabs().owner_of(p) == nullptr);
  EXPECT(slab->arena().statistics().in_use_B == 0);  // its books are there until it is released
  slab->let_go();
}

// Fills a block with its owner's mark, and says whether nobody else has written to it meanwhile.
bool use(void* p, std::size_t size, int mark) {
  std::memset(p, mark, size);
  std::this_thread::yield();
  const auto* bytes = static_cast<const unsigned char*>(p);
  return bytes[0] == mark && bytes[size / 2] == mark && bytes[size - 1] == mark;
}

// Some threads run segments, others release what they were given, workers come in between.
void test_many_threads() {
  Slab* slab = open(256 * KiB, 4 * KiB);
  slab->set_plan_top(8 * KiB);
  std::atomic<int> torn{0};
  const auto planned = table();
  auto segments = [&](int mark) {
    Thread::mine().engage(slab);
    for (int turn = 0; turn < TURNS; ++turn) {
      Thread::mine().enter(planned);
      for (std::int64_t statement = 0; statement < 2; ++statement) {
        Thread::mine().at(statement);
        const Bytes size_B = statement == 0 ? 1024 : 512;
        void* p = asked(size_B);
        if (p == nullptr || !use(p, static_cast<std::size_t>(size_B), mark)) ++torn;
        if (p != nullptr) slabs().owner_of(p)->release(p);
      }
      Thread::mine().leave();
    }
    Thread::mine().disengage(slab);
  };
  auto workers = [&](int mark) {
    for (int turn = 0; turn < TURNS; ++turn) {
      void* p = slab->serve_worker(64 + turn % 3000);
      if (p == nullptr || !use(p, static_cast<std::size_t>(64 + turn % 3000), mark)) ++torn;
      if (p != nullptr) slab->release(p);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back(segments, i + 1);
  for (int i = 0; i < 2; ++i) threads.emplace_back(workers, i + 11);
  for (std::thread& thread : threads) thread.join();
  EXPECT(torn == 0);
  const Tallies tallies = slab->tallies();
  EXPECT(tallies.planned_hits + tallies.misplaced_allocations == 4 * TURNS);
  EXPECT(tallies.workers == 2 * TURNS && tallies.workers_B == 0 && tallies.workers_peak_B > 0);
  EXPECT(slab->arena().statistics().in_use_B == 0 && slab->arena().check().empty());
  slab->let_go();
}

// Slabs open and close while other threads, which are engaged with none, take from whichever is active.
void test_closing_under_way() {
  std::atomic<bool> done{false};
  std::atomic<int> torn{0}, served{0};
  auto take = [&](int mark) {
    while (!done) {
      Slab* slab = slabs().for_workers();
      void* p = slab == nullptr ? nullptr : slab->serve_worker(700);
      if (p == nullptr) continue;
      ++served;
      if (!use(p, 700, mark) || slabs().owner_of(p) != slab) ++torn;
      slab->release(p);
    }
  };
  std::thread one(take, 1), other(take, 2);
  for (int turn = 0; turn < TURNS || (served < 100 && turn < 100 * TURNS); ++turn) {
    Slab* slab = open(8 * KiB);
    Thread::mine().engage(slab);
    std::this_thread::yield();
    Thread::mine().disengage(slab);
    slab->let_go();
  }
  done = true;
  one.join();
  other.join();
  EXPECT(torn == 0 && served > 0);
}

}  // namespace

int main() {
  test_places();
  test_order_of_engagements();
  test_life();
  test_many_threads();
  test_closing_under_way();
  return TEST_RESULT;
}
