// Nanoseconds of an allocation with its free: the arena, and posix_memalign beside it. One line of JSON per row.
// `arena_speed.py` builds and runs this; the fastest of several rounds counts, which the machine's other work disturbs
// least.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "arena.hpp"
#include "random.hpp"

namespace {

using lowtide::Arena;
using lowtide::Bytes;

constexpr int ROUNDS = 15;
constexpr int PAIRS = 20000;
constexpr Bytes ALIGNMENT_B = 64;
constexpr Bytes MIB = Bytes{1} << 20;

template <class Pair>
double fastest_ns(const Pair& pair) {
  double best_ns = 1e18;
  for (int round = 0; round < ROUNDS; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < PAIRS; ++i) pair(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best_ns = std::min(best_ns, took.count() / PAIRS);
  }
  return best_ns;
}

void* stock(Bytes size_B) {
  void* bytes = nullptr;
  if (posix_memalign(&bytes, ALIGNMENT_B, static_cast<std::size_t>(size_B)) != 0) std::abort();
  return bytes;
}

// What is allocated, and in what surroundings: `holes` holes of random or equal sizes, none or all of which suffice.
struct Case {
  const char* name;
  int holes;
  bool equal;       // holes of one size
  Bytes hole_B;     // largest hole
  Bytes request_B;  // largest request; each is between half of that and it
};

constexpr Case CASES[] = {
    {"1 MiB, no holes", 0, false, 0, MIB},
    {"1 MiB among smaller holes", 2500, false, MIB / 4, MIB},
    {"1 MiB among holes that suffice", 2500, false, 4 * MIB, MIB},
    {"1 MiB among equal holes", 2500, true, MIB, MIB},
    {"4 KiB, no holes", 0, false, 0, 4096},
    {"4 KiB among equal holes", 2500, true, 4096, 4096},
    {"4 KiB among holes that suffice", 2500, false, MIB, 4096},
};

// Blocks with holes between them: what is allocated first is freed, what is allocated between stays.
void make_holes(Arena& arena, const Case& c) {
  lowtide::Random dice(1);
  std::vector<Bytes> between;
  for (int i = 0; i < c.holes; ++i) {
    const Bytes size_B = c.equal ? c.hole_B : 1 + static_cast<Bytes>(dice.unit() * static_cast<double>(c.hole_B - 1));
    between.push_back(arena.allocate(size_B));
    if (arena.allocate(256) < 0) std::abort();
  }
  for (Bytes offset_B : between) arena.free(offset_B);
  if (arena.statistics().holes < c.holes) std::abort();
}

std::vector<Bytes> requests(const Case& c) {
  lowtide::Random dice(2);
  const Bytes half_B = c.request_B / 2;
  std::vector<Bytes> sizes;
  for (int i = 0; i < 1024; ++i)
    sizes.push_back(c.equal ? c.request_B : half_B + 1 + dice.below(static_cast<lowtide::Index>(half_B)));
  return sizes;
}

void report(const char* name, int holes, double arena_ns, double stock_ns) {
  const char* line = "{\"case\": \"%s\", \"holes\": %d, \"arena_ns\": %.1f, \"stock_ns\": %.1f}\n";
  std::printf(line, name, holes, arena_ns, stock_ns);
}

void one_at_a_time(const Case& c) {
  Arena arena(Bytes{16} << 30, ALIGNMENT_B);
  make_holes(arena, c);
  const std::vector<Bytes> sizes = requests(c);
  const auto size_B = [&](int i) { return sizes[static_cast<std::size_t>(i) % 1024]; };
  const double arena_ns = fastest_ns([&](int i) { arena.free(arena.allocate(size_B(i))); });
  const double stock_ns = fastest_ns([&](int i) { std::free(stock(size_B(i))); });
  report(c.name, c.holes, arena_ns, stock_ns);
}

// Frees one of many blocks, at random, and allocates its size again: the arena at the same, planned offset.
void planned(const char* name, bool equal, Bytes largest_B) {
  constexpr int LIVE = 2500;
  Arena arena(LIVE * (largest_B + 256), ALIGNMENT_B);
  lowtide::Random dice(1);
  std::vector<Bytes> sizes, offsets;
  std::vector<void*> pointers;
  std::vector<std::size_t> places;
  for (int i = 0; i < LIVE; ++i) {
    sizes.push_back(equal ? largest_B : 1 + dice.below(static_cast<lowtide::Index>(largest_B)));
    offsets.push_back(arena.allocate(sizes.back()));
    if (arena.allocate(256) < 0) std::abort();
    pointers.push_back(stock(sizes.back()));
  }
  for (Bytes offset_B : offsets) arena.free(offset_B);
  for (int i = 0; i < 65536; ++i) places.push_back(static_cast<std::size_t>(dice.below(LIVE)));
  std::size_t turn = 0;
  const double arena_ns = fastest_ns([&](int) {
    const std::size_t i = places[++turn % 65536];
    if (!arena.allocate_at(offsets[i], sizes[i])) std::abort();
    arena.free(offsets[i]);
  });
  const double stock_ns = fastest_ns([&](int) {
    const std::size_t i = places[++turn % 65536];
    std::free(pointers[i]);
    pointers[i] = stock(sizes[i]);
  });
  for (void* pointer : pointers) std::free(pointer);
  report(name, LIVE, arena_ns, stock_ns);
}

// Above the holes, which all suffice: a search by size alone would look at every one of them.
void above() {
  const Case c{"1 MiB, above holes that suffice", 2500, false, 4 * MIB, MIB};
  Arena arena(Bytes{16} << 30, ALIGNMENT_B);
  make_holes(arena, c);
  const Bytes top_B = arena.statistics().low_high_B;
  const double arena_ns = fastest_ns([&](int) {
    arena.free(arena.allocate(MIB, top_B, Bytes{16} << 30, lowtide::End::high));
  });
  report(c.name, c.holes, arena_ns, fastest_ns([&](int) { std::free(stock(MIB)); }));
}

// Every pair frees one of `live` blocks, at random, and allocates another: the holes are what comes of it.
void churn(const char* name, int live, Bytes largest_B) {
  Arena arena(Bytes{64} << 30, ALIGNMENT_B);
  lowtide::Random dice(3);
  std::vector<Bytes> sizes;
  std::vector<std::size_t> places;
  for (int i = 0; i < 65536; ++i) {
    sizes.push_back(1 + dice.below(static_cast<lowtide::Index>(largest_B)));
    places.push_back(static_cast<std::size_t>(dice.below(live)));
  }
  std::vector<Bytes> offsets;
  std::vector<void*> pointers;
  for (int i = 0; i < live; ++i) {
    offsets.push_back(arena.allocate(sizes[static_cast<std::size_t>(i)]));
    pointers.push_back(stock(sizes[static_cast<std::size_t>(i)]));
  }
  std::size_t turn = 0;
  const double arena_ns = fastest_ns([&](int) {
    Bytes& offset_B = offsets[places[++turn % 65536]];
    arena.free(offset_B);
    offset_B = arena.allocate(sizes[turn * 31 % 65536]);
  });
  const int holes = static_cast<int>(arena.statistics().holes);
  const double stock_ns = fastest_ns([&](int) {
    void*& pointer = pointers[places[++turn % 65536]];
    std::free(pointer);
    pointer = stock(sizes[turn * 31 % 65536]);
  });
  for (void* pointer : pointers) std::free(pointer);
  report(name, holes, arena_ns, stock_ns);
}

}  // namespace

int main() {
  for (const Case& c : CASES) one_at_a_time(c);
  above();
  planned("planned offsets, random sizes up to 256 KiB", false, MIB / 4);
  planned("planned offsets, 4 KiB each", true, 4096);
  churn("random lifetimes, 500 blocks up to 256 KiB", 500, MIB / 4);
  churn("random lifetimes, 5000 blocks up to 256 KiB", 5000, MIB / 4);
  return 0;
}
