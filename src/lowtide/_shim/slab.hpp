// Slab: the core's arena on real memory, and the rules by which torch's requests find their place in it.
//
// ADDRESS MAP
//   0 .................. plan_top ................... persistent_lo ........ small_lo ..... capacity
//   | planned places      | general: best fit, carved | persistent: on | requests     |
//   | (offsets of tables) | from the high end         | demand only     | below 512 B  |
// A request of a running segment takes its planned place (see table.hpp); whatever has none is served from the general
// zone, then, counted as overflow, from any hole from plan_top up; within segments, for workers and for small requests
// then from any hole at all: other code must not take the places that a plan is about to use. Small requests that do
// not fit their zone go to the general one. Nothing is served past the capacity.
// While `resting`, no plan needs its places: requests outside segments go to the persistent zone first, then to the low
// end, so that what an optimizer makes for good lies there and what it makes for a short time raises no high water.
//
// Past the capacity a request is refused. Where a slab is not `strict`, only segments are: other code of the engaged
// thread, which may be anybody's, is then served by the stock allocator, and counted as a spill.
//
// VALUES. A slab that keeps values (`Options::values`) serves programs without a plan: requests are carved from the end
// that set_side() chose, those below LITTLE_B from the high end, and single numbers from the small zone: there are many
// of them, short-lived, and they would cut the rest into pieces. What does not fit its zone lies anywhere. A tag
// is there no asker but the number that the caller gave the block with own(), 0 until then. When a block with a number
// is released, the number is queued as a *death*, which take_deaths() hands out in order; whoever frees a block on
// purpose disowns it first. The block of a number with the bit KEPT is kept when it is released: it belongs to whoever
// takes the death, bit and all.
//
// METER. Between meter() and metered() a slab of values keeps books of the blocks that are served: metered() has the
// sizes, in the order in which they were asked for, of those from SMALL_B up that were there together when they were
// most.
//
// PRESSURE. A request of an engaged thread or a worker that finds no place asks the slab's `Pressure`, with no lock
// held, and is tried again for as long as that says so.
//
// LIFE. The memory is reserved, not touched, when a slab opens. It is given back when the slab is closed, no thread is
// engaged with it, and its last block is gone; until then blocks stay valid, from any thread. Its books go when whoever
// opened it has released it too. The slab itself, a few hundred bytes, is kept for the rest of the process: other
// threads may be looking at it.
// INVARIANT: `claims` = blocks in use + threads inside serve(); memory is unmapped only at claims == 0 after close().
//
// THREADS. Every member may be called from any thread. No member calls Python.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arena.hpp"
#include "memory.hpp"
#include "names.hpp"
#include "table.hpp"

namespace lowtide::shim {

// Places that are no offset: by best fit, and in the zone of persistent storages.
constexpr Bytes GENERAL = -1, PERSISTENT = -2;

enum class Reason : std::uint8_t { size, occupied, unexpected };

// An allocation of a segment that was not served at a planned place.
struct MisplacedAllocation {
  std::int64_t statement;  // -1: before the first
  Name name;
  Bytes size_B;
  Reason reason;
  Name holder;  // occupied: statement, else phase, of a block that lies there
};

struct Tallies {
  std::int64_t planned_hits, planned_misses, misplaced_allocations, small, workers, overflow, outside, requests;
  Bytes workers_B, workers_peak_B, outside_B;
  std::int64_t failures_for_capacity, failures_for_contiguity, spills;
  Bytes spilled_B;
};

// What frees bytes in a slab that is too full. It may be asked from any thread, inside a kernel, with or without
// Python's lock, by several threads at once.
class Pressure {
 public:
  virtual ~Pressure() = default;
  // Whether it changed something, so that the request is worth another try.
  virtual bool relieve(Bytes size_B, bool worker) = 0;
};

class Slab {
 public:
  static constexpr Bytes LITTLE_B = 32 * 1024;  // in a slab of values
  static constexpr Bytes NUMBER_B = 16;         // there, too: the largest one
  static constexpr std::uint64_t KEPT = std::uint64_t{1} << 63;

  struct Options {
    Bytes capacity_B, alignment_B, small_zone_B, persistent_B;
    bool all_threads;
    bool values = false;
  };

  // Reserves the memory and makes its blocks known (see slabs.hpp). Throws std::invalid_argument, or what the memory
  // throws, which has to be there for ever.
  static Slab* open(const Options& options, Memory& memory = host_memory());

  // Memory for a request of a thread that is engaged (`run`: its segment, or null), or nullptr: see refusal().
  void* serve(Bytes size_B, Run* run);
  // The same for a thread that is not.
  void* serve_worker(Bytes size_B);
  // By best fit as serve() does outside segments, under no pressure; or nullptr.
  void* serve_quietly(Bytes size_B);
  // From the persistent zone, or nullptr.
  void* serve_persistent(Bytes size_B);
  // Exactly there, or nullptr.
  void* serve_at(Bytes offset_B, Bytes size_B);
  // One of the three.
  void* serve_place(Bytes where_B, Bytes size_B) {
    return where_B == GENERAL      ? serve_quietly(size_B)
           : where_B == PERSISTENT ? serve_persistent(size_B)
                                   : serve_at(where_B, size_B);
  }
  // p must be a block of this slab.
  void release(void* p);
  // Why a request cannot be served, and what to do.
  std::string refusal(Bytes size_B, const Run* run, bool worker);

  bool owns(const void* p) const { return address(p) - address(base_) < size_; }
  Bytes offset_of(const void* p) const { return static_cast<const char*>(p) - base_; }
  void* base() const { return base_; }
  bool all_threads() const { return options_.all_threads; }

  void set_plan_top(Bytes top_B);
  Bytes plan_top() const { return plan_top_B_.load(std::memory_order_relaxed); }
  void set_strict(bool strict) { strict_.store(strict, std::memory_order_relaxed); }
  bool is_strict() const { return strict_.load(std::memory_order_relaxed); }
  void set_resting(bool resting) { resting_.store(resting, std::memory_order_relaxed); }
  bool is_resting() const { return resting_.load(std::memory_order_relaxed); }
  void set_place(Bytes persistent_B);
  Bytes zone() const { return persistent_B_.load(std::memory_order_relaxed); }
  Bytes persistent_lo() const { return small_lo() - zone(); }
  void set_phase(Name phase) { phase_.store(phase, std::memory_order_relaxed); }

  bool keeps_values() const { return options_.values; }
  void set_side(End side) { side_.store(side, std::memory_order_relaxed); }
  // The block at p now holds this value; 0: nobody's. False where the slab keeps no values, or no block begins there.
  bool own(const void* p, std::uint64_t value);
  std::uint64_t owner_at(const void* p) const;  // 0: nobody
  void report_death(std::uint64_t value);
  bool has_deaths() const { return has_deaths_.load(std::memory_order_acquire); }
  std::vector<std::uint64_t> take_deaths();
  void meter();
  std::vector<Bytes> metered();
  void set_pressure(std::shared_ptr<Pressure> pressure);  // null: none

  Arena& arena() { return *arena_; }
  Tallies tallies() const;
  // Misplaced allocations, refusals and spills so far: whether anything is worth a closer look, at the price of four
  // reads.
  std::int64_t troubles() const { return departed_.load() + no_capacity_.load() + no_contiguity_.load() + spills_.load(); }
  void reset_peaks();
  std::vector<MisplacedAllocation> misplaced_allocations() const;  // the first ones since they were last forgotten
  void forget_misplaced_allocations();
  void finish(const Run& run);  // adds its hits and misses to the tallies
  void note_outside(Bytes size_B);
  void note_spill(Bytes size_B);
  // Gives the pages of holes back to the system; returns the bytes of whole pages in them.
  Bytes trim();

  void engaged() { engagements_.fetch_add(1); }
  void disengaged();
  int engagements() const { return engagements_.load(); }
  bool is_open() const { return !closed_.load(); }
  // No further allocation. While threads are engaged this takes effect when the last one leaves.
  void close();
  // Closes it, and promises that the caller asks it nothing more.
  void let_go();

  void before_fork();
  void after_fork(bool child);

 private:
  static constexpr std::size_t MOST_MISPLACED = 256;
  static constexpr Bytes NOWHERE = Arena::NOWHERE;

  Slab(const Options& options, Memory& memory, char* base, std::size_t size);

  static std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

  bool claim();    // false: closed
  void unclaim();
  void retire_if_done();
  void drop_books();
  void* at_or_unclaim(Bytes offset_B);
  void* serve_once(Bytes size_B, Run* run);
  void* serve_worker_once(Bytes size_B);
  bool relieve(Bytes size_B, bool worker);
  Bytes place_value(Bytes size_B);
  void note_served(Bytes offset_B, Bytes size_B);
  void note_released(Bytes offset_B);
  void note_most();
  Bytes place_planned(Bytes size_B, Run& run, std::uint64_t tag);
  Bytes place_small(Bytes size_B, std::uint64_t tag);
  Bytes place_general(Bytes size_B, std::uint64_t tag, bool anywhere);
  Bytes place_resting(Bytes size_B, std::uint64_t tag);
  void depart(const Run& run, Bytes size_B, Reason reason, Bytes offset_B);
  std::uint64_t tag(Name statement, bool worker) const {
    return options_.values ? 0 : tag_of({statement, phase_.load(std::memory_order_relaxed), worker});
  }
  Bytes small_lo() const { return options_.capacity_B - options_.small_zone_B; }

  const Options options_;
  Memory& memory_;
  char* const base_;
  const std::size_t size_;  // bytes mapped
  std::unique_ptr<Arena> arena_;
  std::atomic<Bytes> plan_top_B_{0}, persistent_B_;
  std::atomic<Name> phase_{0};
  std::atomic<std::int64_t> claims_{0};
  std::atomic<int> engagements_{0};
  std::atomic<bool> resting_{false}, strict_{true};
  std::atomic<int> readers_{2};  // of the books: whoever opened it, and its blocks
  std::atomic<bool> closing_{false}, closed_{false}, retired_{false};
  std::atomic<std::int64_t> hits_{0}, misses_{0}, departed_{0}, small_{0}, workers_{0}, overflow_{0}, outside_{0};
  std::atomic<std::int64_t> requests_{0}, no_capacity_{0}, no_contiguity_{0}, workers_live_{0};
  std::atomic<std::int64_t> spills_{0};
  std::atomic<Bytes> workers_B_{0}, workers_peak_B_{0}, outside_B_{0}, spilled_B_{0};
  mutable std::mutex misplaced_mutex_;
  std::vector<MisplacedAllocation> misplaced_;
  std::atomic<End> side_{End::high};
  std::atomic<bool> has_deaths_{false};
  std::mutex values_mutex_;
  std::vector<std::uint64_t> deaths_;
  struct Metered {
    Bytes offset_B, size_B;
  };
  std::atomic<bool> meters_{false};
  std::vector<Metered> live_;  // served since meter()
  std::vector<Bytes> most_;    // of them, when they were most
  Bytes live_B_ = 0, most_B_ = 0;
  std::shared_ptr<Pressure> pressure_;
};

}  // namespace lowtide::shim
