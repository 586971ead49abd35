// The GPU's arena on a simulated device: no byte is used by two streams at once, and nothing is served past the limit.
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/device.hpp"
#include "expect.hpp"
#include "fake_cuda.hpp"
#include "thread.hpp"

using namespace lowtide;
using namespace lowtide::shim;

namespace {

constexpr Bytes KiB = 1024, MiB = 1024 * KiB;

#ifdef LOWTIDE_CHECK
constexpr int STEPS = 4000;
#else
constexpr int STEPS = 40000;
#endif

const Stream A = fake::stream(0), B = fake::stream(0x20), C = fake::stream(0x30);

// As in a process, a device lives to the end.
Device* device() {
  static auto* const kept = new std::vector<Device*>;
  fake::reset();
  kept->push_back(new Device(0, {2 * MiB, 0, 64 * KiB}));
  return kept->back();
}

Bytes offset(Device* gpu, void* p) { return gpu->slab().offset_of(p); }

void test_one_stream_costs_nothing() {
  Device* gpu = device();
  void* a = gpu->allocate(100 * KiB, A);
  fake::issue(A);
  gpu->release(a, A);
  void* b = gpu->allocate(100 * KiB, A);
  EXPECT(a == b && offset(gpu, a) % 512 == 0);
  EXPECT(fake::gpu().records == 0 && fake::gpu().waits_by_threads == 0);
  gpu->release(b, A);
}

void test_another_stream_is_told_to_wait() {
  Device* gpu = device();
  void* a = gpu->allocate(100 * KiB, A);
  const std::int64_t work = fake::issue(A);
  gpu->release(a, A);
  EXPECT(!fake::comes_after(B, A, work));
  void* b = gpu->allocate(100 * KiB, B);
  EXPECT(a == b && fake::comes_after(B, A, work));
  EXPECT(gpu->counts().waits == 1 && fake::gpu().waits_by_threads == 0);
  void* again = gpu->allocate(50 * KiB, B);  // marked before the wait: it covers this too
  EXPECT(gpu->counts().waits == 1);
  gpu->release(again, B);
  gpu->release(b, B);
}

void test_a_block_waits_for_its_other_users() {
  Device* gpu = device();
  void* a = gpu->allocate(1 * MiB, A);
  fake::issue(A);
  fake::issue(B);
  gpu->used(a, B);
  gpu->used(a, B);
  gpu->release(a, A);
  EXPECT(gpu->parked() == 1 && gpu->counts().bytes.current == 0 && gpu->counts().active_bytes.current == 1 * MiB);
  void* b = gpu->allocate(100 * KiB, A);
  EXPECT(offset(gpu, b) != offset(gpu, a) && gpu->parked() == 1);
  fake::finish(B);
  gpu->settle(false);
  EXPECT(gpu->parked() == 0 && gpu->counts().active_bytes.current == 100 * KiB);
  gpu->release(b, A);
  EXPECT(gpu->slab().arena().statistics().in_use_B == 0);
}

void test_pressure_waits_and_the_limit_refuses() {
  Device* gpu = device();
  void* a = gpu->allocate(1536 * KiB, A);
  fake::issue(B);
  gpu->used(a, B);
  gpu->release(a, A);
  void* b = gpu->allocate(1536 * KiB, A);
  EXPECT(a == b && gpu->counts().retries == 1 && fake::gpu().waits_by_threads == 1);
  EXPECT(gpu->allocate(1 * MiB, A) == nullptr && gpu->counts().refusals == 1);
  EXPECT(gpu->refusal(1 * MiB).find("2.00 MiB is spent") != std::string::npos);
  gpu->release(b, A);
  void* whole = gpu->allocate(2 * MiB, A);
  EXPECT(whole != nullptr);
  gpu->release(whole, A);
  gpu->release(whole, A);  // twice: the books are right
  EXPECT(gpu->slab().arena().check().empty() && gpu->counts().bytes.current == 0);
}

void test_planned_places() {
  Device* gpu = device();
  Slab& slab = gpu->slab();
  slab.set_plan_top(16 * KiB);
  const auto table = std::make_shared<Table>(std::vector<Bytes>{1000, 2048}, std::vector<Bytes>{1024, 4096},
                                             std::vector<std::int64_t>{0, 2}, std::vector<std::string>{"mm"}, 512);
  Thread::mine().engage(&slab);
  Thread::mine().enter(table);
  Thread::mine().at(0);
  void *a = gpu->allocate(1000, A), *b = gpu->allocate(2048, A), *c = gpu->allocate(2048, A);
  EXPECT(offset(gpu, a) == 1024 && offset(gpu, b) == 4096 && offset(gpu, c) >= 16 * KiB);
  EXPECT(Thread::mine().leave() == 2);
  Thread::mine().disengage(&slab);
  std::thread([&] { gpu->release(a, A); }).join();
  gpu->release(b, A);
  gpu->release(c, A);
  EXPECT(slab.tallies().planned_hits == 2 && slab.misplaced_allocations().size() == 1);
}

void test_a_runtime_that_fails() {
  Device* gpu = device();
  fake::gpu().refuses_events = true;
  void* a = gpu->allocate(100 * KiB, A);
  const std::int64_t work = fake::issue(B);
  gpu->used(a, B);
  gpu->release(a, A);  // no event can be had: the thread waits instead
  EXPECT(gpu->parked() == 0 && fake::comes_after(A, B, work));
  void* b = gpu->allocate(100 * KiB, B);
  EXPECT(b != nullptr);
  fake::gpu().is_lost = true;
  gpu->used(b, A);
  gpu->release(b, B);
  EXPECT(gpu->parked() == 0 && gpu->counts().active.current == 0);
}

void test_budgets() {
  fake::reset();
  Devices& all = devices();
  auto refused = [&](auto call) {
    try {
      call();
    } catch (const std::exception&) {
      return true;
    }
    return false;
  };
  EXPECT(refused([&] { all.at(1); }));
  EXPECT(refused([&] { all.set_budget(-1, {1 * MiB, 0, 0}); }));
  EXPECT(refused([&] { all.set_budget(-1, {0, 1.5, 0}); }));
  all.set_budget(-1, {4 * MiB, 0, 0});
  all.set_budget(2, {0, 0.25, 0});
  EXPECT(all.at(1).slab().arena().capacity_B() == 4 * MiB);
  EXPECT(all.at(2).slab().arena().capacity_B() == 256 * MiB && all.alive(3) == nullptr);
  EXPECT(refused([&] { all.set_budget(1, {8 * MiB, 0, 0}); }));
  all.set_budget(3, {Bytes{1} << 40, 0, 0});
  EXPECT(refused([&] { all.at(3); }) && all.alive(3) == nullptr);
  void* p = all.at(1).allocate(1000, A);
  EXPECT(all.owner_of(p) == &all.at(1) && all.owner_of(&p) == nullptr);
  all.at(1).release(p, A);
}

// Who used each 512 bytes last, on which stream.
struct Use {
  Stream stream;
  std::int64_t work;
};

struct Held {
  void* p;
  Bytes size_B;
  Stream owner;
};

void test_no_byte_is_used_twice_at_once() {
  Device* gpu = device();
  std::vector<std::vector<Use>> uses(static_cast<std::size_t>(2 * MiB / 512));
  std::vector<Held> held;
  std::mt19937 random(7);
  const Stream streams[] = {A, B, C};
  int unordered = 0, served = 0;
  auto use = [&](const Held& block, Stream stream, bool is_first) {
    const auto lo = static_cast<std::size_t>(offset(gpu, block.p) / 512);
    const auto hi = lo + static_cast<std::size_t>((block.size_B + 511) / 512);
    for (std::size_t i = lo; i < hi; ++i) {
      if (!is_first) continue;
      for (const Use& before : uses[i])
        unordered += before.stream != stream && !fake::comes_after(stream, before.stream, before.work);
      uses[i].clear();
    }
    const std::int64_t work = fake::issue(stream);
    for (std::size_t i = lo; i < hi; ++i) uses[i].push_back({stream, work});
  };
  for (int step = 0; step < STEPS; ++step) {
    const Stream stream = streams[random() % 3];
    const auto dice = random() % 16;
    if (dice < 8) {
      const Bytes size_B = 1 + static_cast<Bytes>(random() % (128 * KiB));
      void* p = gpu->allocate(size_B, stream);
      if (p == nullptr) continue;
      ++served;
      held.push_back({p, size_B, stream});
      use(held.back(), stream, true);
    } else if (held.empty()) {
      continue;
    } else if (dice < 14) {
      const std::size_t i = random() % held.size();
      gpu->release(held[i].p, held[i].owner);
      held[i] = held.back();
      held.pop_back();
    } else if (dice < 15) {
      const Held& block = held[random() % held.size()];
      if (block.owner != stream) gpu->used(block.p, stream);
      use(block, stream, false);
    } else {
      fake::finish(stream);
    }
  }
  EXPECT(unordered == 0 && served > STEPS / 8);
  EXPECT(gpu->slab().arena().check().empty());
  for (const Held& block : held) gpu->release(block.p, block.owner);
  gpu->settle(true);
  const DeviceCounts counts = gpu->counts();
  EXPECT(gpu->slab().arena().statistics().in_use_B == 0 && counts.active_bytes.current == 0);
  EXPECT(counts.blocks.gained == served && counts.blocks.lost == served && counts.bytes.peak <= 2 * MiB);
}

void test_many_threads() {
  Device* gpu = device();
  auto work = [&](Stream mine, Stream other) {
    for (int turn = 0; turn < STEPS / 20; ++turn) {
      void* p = gpu->allocate(1 + turn % (64 * KiB), mine);
      if (p == nullptr) continue;
      fake::issue(mine);
      if (turn % 5 == 0) gpu->used(p, other);
      gpu->release(p, mine);
      if (turn % 9 == 0) fake::finish(other);
    }
  };
  std::thread one(work, A, B), two(work, B, C), three(work, C, A);
  one.join();
  two.join();
  three.join();
  gpu->settle(true);
  EXPECT(gpu->slab().arena().statistics().in_use_B == 0 && gpu->slab().arena().check().empty());
}

}  // namespace

int main() {
  use(fake::runtime());
  test_one_stream_costs_nothing();
  test_another_stream_is_told_to_wait();
  test_a_block_waits_for_its_other_users();
  test_pressure_waits_and_the_limit_refuses();
  test_planned_places();
  test_a_runtime_that_fails();
  test_budgets();
  test_no_byte_is_used_twice_at_once();
  test_many_threads();
  return TEST_RESULT;
}
