// Many threads at one arena: no byte is served twice, no block moves while its owner uses it, and nothing deadlocks.
#include <array>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "arena.hpp"
#include "expect.hpp"
#include "random.hpp"

using namespace lowtide;

namespace {

constexpr Bytes CAPACITY_B = 1 << 15;
constexpr Bytes ALIGNMENT_B = 64;
constexpr int OWNERS = 4;
constexpr int SLOTS = 24;  // blocks an owner may hold at once

#ifdef LOWTIDE_CHECK
constexpr int TURNS = 5000;  // every change is followed by a check of everything
#else
constexpr int TURNS = 200000;
#endif

// A block's owner holds its mutex while it uses the block, and the mover while it moves it.
struct Slot {
  std::mutex mutex;
  Bytes offset_B = Arena::NOWHERE;
  Bytes size_B = 0;
};

struct House {
  Arena arena{CAPACITY_B, ALIGNMENT_B};
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(CAPACITY_B / 8);  // written by owners, unguarded
  std::array<Slot, OWNERS * SLOTS> slots;
  std::atomic<int> torn{0};
  std::atomic<int> working{OWNERS};
};

bool holds(const House& house, const Slot& slot, std::uint64_t tag) {
  for (Bytes b = 0; b < slot.size_B; b += 8)
    if (house.memory[static_cast<std::size_t>((slot.offset_B + b) / 8)] != tag) return false;
  return true;
}

void own(House& house, int owner) {
  Random dice(static_cast<std::uint64_t>(owner));
  for (int turn = 0; turn < TURNS; ++turn) {
    const auto tag = static_cast<std::uint64_t>(owner * SLOTS + dice.below(SLOTS));
    Slot& slot = house.slots[tag];
    const std::lock_guard<std::mutex> guard(slot.mutex);
    if (slot.offset_B != Arena::NOWHERE) {
      if (!holds(house, slot, tag)) ++house.torn;
      if (house.arena.free(slot.offset_B) != slot.size_B) ++house.torn;
      slot.offset_B = Arena::NOWHERE;
      continue;
    }
    slot.size_B = 8 * (1 + dice.below(80));
    const End end = dice.below(4) == 0 ? End::high : End::low;
    slot.offset_B = house.arena.allocate(slot.size_B, 0, CAPACITY_B, end, tag);
    if (slot.offset_B == Arena::NOWHERE) continue;
    for (Bytes b = 0; b < slot.size_B; b += 8) house.memory[static_cast<std::size_t>((slot.offset_B + b) / 8)] = tag;
  }
  --house.working;
}

// Slides what no owner is using; asks everything else meanwhile.
void disturb(House& house) {
  Random dice(99);
  std::vector<std::unique_lock<std::mutex>> held;
  const auto movable = [&](const Block& b) {
    std::unique_lock<std::mutex> lock(house.slots[b.tag].mutex, std::try_to_lock);
    // An owner who is about to free or has not yet written down its block holds the mutex: so the slot is up to date.
    if (!lock.owns_lock()) return false;
    held.push_back(std::move(lock));
    return true;
  };
  const auto relocate = [&](Bytes from_B, Bytes to_B, Bytes size_B) {
    const auto word = [](Bytes b) { return static_cast<std::size_t>(b / 8); };
    const std::uint64_t tag = house.memory[word(from_B)];
    for (Bytes b = 0; b < size_B; b += 8) house.memory[word(to_B + b)] = house.memory[word(from_B + b)];
    house.slots[tag].offset_B = to_B;
    return true;
  };
  while (house.working > 0) {
    held.clear();
    switch (dice.below(6)) {
      case 0: house.arena.compact(0, CAPACITY_B, movable, relocate); break;
      case 1: house.arena.slide_for(2048, 0, CAPACITY_B, movable, relocate); break;
      case 2:
        (void)house.arena.cheapest_window(4096, 0, CAPACITY_B, [](const Block& b) { return double(b.requested_B); });
        break;
      case 3: (void)house.arena.blocks(); break;
      case 4: (void)house.arena.in_use_within(CAPACITY_B / 2, CAPACITY_B); break;
      default:
        if (!house.arena.check().empty() || house.arena.statistics().in_use_B > CAPACITY_B) ++house.torn;
    }
    held.clear();
    std::this_thread::yield();
  }
}

}  // namespace

int main() {
  House house;
  std::vector<std::thread> threads;
  for (int owner = 0; owner < OWNERS; ++owner) threads.emplace_back(own, std::ref(house), owner);
  threads.emplace_back(disturb, std::ref(house));
  for (std::thread& thread : threads) thread.join();
  EXPECT(house.torn == 0 && house.arena.check().empty());
  Bytes held_B = 0;
  for (std::uint64_t tag = 0; tag < house.slots.size(); ++tag) {
    const Slot& slot = house.slots[tag];
    if (slot.offset_B == Arena::NOWHERE) continue;
    EXPECT(holds(house, slot, tag));
    held_B += slot.size_B;
  }
  const ArenaStatistics s = house.arena.statistics();
  EXPECT(s.requested_B == held_B && s.moves > 0 && s.frees > 0 && s.peak_in_use_B <= CAPACITY_B);
  return TEST_RESULT;
}
