#include "slab.hpp"

#include <algorithm>
#include <stdexcept>

#include "slabs.hpp"

namespace lowtide::shim {

namespace {

constexpr Bytes LITTLE = 256;  // parts of the plan's height: less than one of them is a little request
constexpr auto RELAXED = std::memory_order_relaxed;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

void check(const Slab::Options& o, const Memory& memory) {
  require(o.alignment_B >= 64 && (o.alignment_B & (o.alignment_B - 1)) == 0 &&
              o.alignment_B <= static_cast<Bytes>(memory.unit()),
          "the alignment is a power of two from 64 to a page");
  require(o.capacity_B >= o.alignment_B && o.capacity_B % o.alignment_B == 0,
          "the capacity is a positive multiple of the alignment");
  require(o.small_zone_B >= 0 && o.small_zone_B % o.alignment_B == 0 && o.persistent_B >= 0 &&
              o.persistent_B % o.alignment_B == 0 && o.small_zone_B + o.persistent_B <= o.capacity_B,
          "the zones are multiples of the alignment and fit the capacity");
}

void raise_to(std::atomic<Bytes>& most, Bytes value) {
  Bytes seen = most.load(RELAXED);
  while (seen < value && !most.compare_exchange_weak(seen, value, RELAXED)) {
  }
}

}  // namespace

Slab* Slab::open(const Options& options, Memory& memory) {
  check(options, memory);
  const std::size_t unit = memory.unit();
  const std::size_t size = (static_cast<std::size_t>(options.capacity_B) + unit - 1) / unit * unit;
  char* base = memory.reserve(size);
  auto* slab = new Slab(options, memory, base, size);
  try {
    slabs().add(slab);
  } catch (...) {
    memory.give_back(base, size);
    delete slab;
    throw;
  }
  return slab;
}

Slab::Slab(const Options& options, Memory& memory, char* base, std::size_t size)
    : options_(options),
      memory_(memory),
      base_(base),
      size_(size),
      arena_(std::make_unique<Arena>(options.capacity_B, options.alignment_B)) {
  persistent_B_ = options.persistent_B;
}

void Slab::set_plan_top(Bytes top_B) {
  require(top_B >= 0 && top_B <= options_.capacity_B && top_B % options_.alignment_B == 0,
          "the top of the plan is a multiple of the alignment within the capacity");
  plan_top_B_.store(top_B, RELAXED);
}

void Slab::set_place(Bytes persistent_B) {
  require(persistent_B >= 0 && persistent_B % options_.alignment_B == 0 && persistent_B <= small_lo(),
          "the persistent zone is a multiple of the alignment and fits below the small zone");
  persistent_B_.store(persistent_B, RELAXED);
}

// Sequentially consistent with close(): either this thread sees the slab closed, or retire_if_done() sees its claim.
bool Slab::claim() {
  claims_.fetch_add(1);
  if (!closed_.load()) return true;
  unclaim();
  return false;
}

void Slab::unclaim() {
  if (claims_.fetch_sub(1) == 1 && closed_.load()) retire_if_done();
}

void Slab::retire_if_done() {
  if (!closed_.load() || claims_.load() != 0 || engagements_.load() != 0 || retired_.exchange(true)) return;
  slabs().remove(this);
  memory_.give_back(base_, size_);
  drop_books();
}

void Slab::drop_books() {
  if (readers_.fetch_sub(1) == 1) arena_ = nullptr;
}

void Slab::let_go() {
  close();
  drop_books();
}

void Slab::close() {
  closing_ = true;
  if (engagements_.load() == 0) closed_ = true;
  retire_if_done();
}

void Slab::disengaged() {
  if (engagements_.fetch_sub(1) == 1 && closing_.load()) closed_ = true;
  retire_if_done();
}

void* Slab::at_or_unclaim(Bytes offset_B) {
  if (offset_B != NOWHERE) return base_ + offset_B;
  unclaim();
  return nullptr;
}

void* Slab::serve(Bytes size_B, Run* run) {
  requests_.fetch_add(1, RELAXED);
  void* p = serve_once(size_B, run);
  while (p == nullptr && relieve(size_B, false)) p = serve_once(size_B, run);
  return p;
}

void* Slab::serve_worker(Bytes size_B) {
  requests_.fetch_add(1, RELAXED);
  void* p = serve_worker_once(size_B);
  while (p == nullptr && relieve(size_B, true)) p = serve_worker_once(size_B);
  return p;
}

void* Slab::serve_quietly(Bytes size_B) { return serve_once(size_B, nullptr); }

void* Slab::serve_once(Bytes size_B, Run* run) {
  if (!claim()) return nullptr;
  if (options_.values) return at_or_unclaim(place_value(size_B));
  const std::uint64_t asker = tag(run != nullptr ? run->name() : 0, false);
  if (size_B < SMALL_B) return at_or_unclaim(place_small(size_B, asker));
  if (run != nullptr && run->slab == this) {
    const Bytes offset_B = place_planned(size_B, *run, asker);
    if (offset_B != NOWHERE) return base_ + offset_B;
  }
  return at_or_unclaim(place_general(size_B, asker, run != nullptr));
}

void* Slab::serve_worker_once(Bytes size_B) {
  if (!claim()) return nullptr;
  if (options_.values) {
    void* p = at_or_unclaim(place_value(size_B));
    workers_.fetch_add(p != nullptr, RELAXED);
    return p;
  }
  const std::uint64_t asker = tag(0, true);
  workers_live_.fetch_add(1);  // before the block exists, so that its release finds the count above zero
  const Bytes offset_B = size_B < SMALL_B ? place_small(size_B, asker) : place_general(size_B, asker, true);
  if (offset_B == NOWHERE) {
    workers_live_.fetch_sub(1);
  } else {
    workers_.fetch_add(1, RELAXED);
    raise_to(workers_peak_B_, workers_B_.fetch_add(size_B, RELAXED) + size_B);
  }
  return at_or_unclaim(offset_B);
}

void* Slab::serve_persistent(Bytes size_B) {
  if (!claim()) return nullptr;
  return at_or_unclaim(arena_->allocate(size_B, persistent_lo(), small_lo(), End::high, tag(0, false)));
}

void* Slab::serve_at(Bytes offset_B, Bytes size_B) {
  require(offset_B >= 0 && offset_B % options_.alignment_B == 0, "an offset is a multiple of the alignment");
  if (!claim()) return nullptr;
  const End side = offset_B < plan_top() ? End::low : End::high;
  return at_or_unclaim(arena_->allocate_at(offset_B, size_B, tag(0, false), side) ? offset_B : NOWHERE);
}

void Slab::release(void* p) {
  const Bytes offset_B = offset_of(p);
  bool by_worker = false;
  if (workers_live_.load() > 0) {
    Block block{};
    by_worker = arena_->find(offset_B, block) && asker_of(block.tag).worker;
  }
  if (meters_.load(RELAXED)) note_released(offset_B);  // before somebody else may be served there
  std::uint64_t owner = 0;
  const Bytes size_B = arena_->free(offset_B, owner, options_.values ? KEPT : 0);
  if (options_.values && owner != 0) report_death(owner);
  if (size_B == NOWHERE) return;  // kept, or no block: torch released it twice, and the arena is unharmed
  if (by_worker) {
    workers_B_.fetch_sub(size_B, RELAXED);
    workers_live_.fetch_sub(1);
  }
  unclaim();
}

Bytes Slab::place_small(Bytes size_B, std::uint64_t asker) {
  small_.fetch_add(1, RELAXED);
  const Bytes offset_B = options_.small_zone_B == 0
                             ? NOWHERE
                             : arena_->allocate(size_B, small_lo(), options_.capacity_B, End::high, asker);
  return offset_B != NOWHERE ? offset_B : place_general(size_B, asker, true);
}

Bytes Slab::place_resting(Bytes size_B, std::uint64_t asker) {
  Bytes offset_B = arena_->allocate(size_B, persistent_lo(), small_lo(), End::high, asker);
  // A little one from the other end: in the middle it would split the hole that was left for two large ones.
  const End end = size_B < plan_top() / LITTLE ? End::high : End::low;
  if (offset_B == NOWHERE) offset_B = arena_->allocate(size_B, 0, plan_top(), end, asker);
  return offset_B != NOWHERE ? offset_B : arena_->allocate(size_B, 0, persistent_lo(), End::low, asker);
}

Bytes Slab::place_general(Bytes size_B, std::uint64_t asker, bool anywhere) {
  if (is_resting()) {
    const Bytes offset_B = place_resting(size_B, asker);
    if (offset_B != NOWHERE) return offset_B;
  }
  const Bytes top_B = plan_top();
  Bytes offset_B = arena_->allocate(size_B, top_B, persistent_lo(), End::high, asker);
  if (offset_B != NOWHERE) return offset_B;
  offset_B = arena_->allocate(size_B, top_B, options_.capacity_B, End::high, asker);
  if (offset_B == NOWHERE && anywhere) offset_B = arena_->allocate(size_B, 0, options_.capacity_B, End::high, asker);
  if (offset_B != NOWHERE) overflow_.fetch_add(1, RELAXED);
  return offset_B;
}

Bytes Slab::place_planned(Bytes size_B, Run& run, std::uint64_t asker) {
  Reason reason = Reason::unexpected;
  Bytes wanted_B = NOWHERE;
  for (std::int64_t entry = run.next; entry < run.end; ++entry) {
    if (run.has_taken(entry)) continue;
    if (run.table->size_B(entry) != size_B) {
      if (reason == Reason::unexpected) reason = Reason::size;
      continue;
    }
    const Bytes offset_B = run.table->offset_B(entry);
    if (arena_->allocate_at(offset_B, size_B, asker, End::low)) {
      run.take(entry);
      return offset_B;
    }
    if (reason != Reason::occupied) wanted_B = offset_B;
    reason = Reason::occupied;
  }
  depart(run, size_B, reason, wanted_B);
  return NOWHERE;
}

void Slab::depart(const Run& run, Bytes size_B, Reason reason, Bytes offset_B) {
  departed_.fetch_add(1, RELAXED);
  Name holder = 0;
  if (reason == Reason::occupied) {
    const auto inside = arena_->blocks(offset_B, offset_B + size_B);
    if (!inside.empty()) {
      const Asker asker = asker_of(inside.front().tag);
      holder = asker.statement != 0 ? asker.statement : asker.phase;
    }
  }
  const std::lock_guard<std::mutex> hold(misplaced_mutex_);
  if (misplaced_.size() < MOST_MISPLACED) misplaced_.push_back({run.statement, run.name(), size_B, reason, holder});
}

void Slab::finish(const Run& run) {
  hits_.fetch_add(run.hits, RELAXED);
  misses_.fetch_add(run.misses, RELAXED);
}

void Slab::note_spill(Bytes size_B) {
  spills_.fetch_add(1, RELAXED);
  spilled_B_.fetch_add(size_B, RELAXED);
}

void Slab::note_outside(Bytes size_B) {
  outside_.fetch_add(1, RELAXED);
  outside_B_.fetch_add(size_B, RELAXED);
}

std::vector<MisplacedAllocation> Slab::misplaced_allocations() const {
  const std::lock_guard<std::mutex> hold(misplaced_mutex_);
  return misplaced_;
}

void Slab::forget_misplaced_allocations() {
  const std::lock_guard<std::mutex> hold(misplaced_mutex_);
  misplaced_.clear();
}

Tallies Slab::tallies() const {
  return {hits_.load(),    misses_.load(),   departed_.load(),  small_.load(),          workers_.load(),
          overflow_.load(), outside_.load(),  requests_.load(),  workers_B_.load(),      workers_peak_B_.load(),
          outside_B_.load(), no_capacity_.load(), no_contiguity_.load(), spills_.load(), spilled_B_.load()};
}

void Slab::reset_peaks() {
  arena_->reset_peaks();
  workers_peak_B_.store(workers_B_.load());
}

Bytes Slab::trim() {
  Bytes given_B = 0;
  const auto unit = static_cast<Bytes>(memory_.unit());
  if (!claim()) return 0;
  arena_->visit_holes([&](Bytes lo_B, Bytes hi_B) {
    const Bytes lo = (lo_B + unit - 1) / unit * unit, hi = hi_B / unit * unit;
    if (lo < hi && memory_.trim(base_ + lo, static_cast<std::size_t>(hi - lo))) given_B += hi - lo;
  });
  unclaim();
  return given_B;
}

void Slab::before_fork() {
  misplaced_mutex_.lock();
  values_mutex_.lock();
  arena_->lock();
}

void Slab::after_fork(bool child) {
  arena_->unlock();
  values_mutex_.unlock();
  misplaced_mutex_.unlock();
  if (child) engagements_ = 0;
}

}  // namespace lowtide::shim
