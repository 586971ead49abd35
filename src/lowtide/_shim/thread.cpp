#include "thread.hpp"

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "slabs.hpp"

namespace lowtide::shim {

// Runs keep their place, and their memory for the next segment.
class Runs {
 public:
  std::deque<Run> runs;
};

namespace {

// Constant-initialised and without destructor, so that reading it needs no check of whether it exists.
thread_local Thread my_thread;

// Undoes what a thread that ends has forgotten to undo.
struct LastWill {
  bool is_written = false;
  ~LastWill() {
    if (is_written) my_thread.undo_everything();
  }
};
thread_local LastWill last_will;

}  // namespace

Thread& Thread::mine() { return my_thread; }

void Thread::engage(Slab* slab) {
  const bool is_on_top = levels_ > 0 && level_[levels_ - 1].slab == slab;
  if (!is_on_top && levels_ == MOST_LEVELS) throw std::logic_error("arenas are engaged 32 deep in this thread");
  slab->engaged();  // before looking: close() waits for whoever is engaged
  if (!slab->is_open()) {
    slab->disengaged();
    throw std::logic_error("a closed arena cannot be engaged: make a new one");
  }
  last_will.is_written = true;
  if (is_on_top) {
    ++level_[levels_ - 1].count;
  } else {
    level_[levels_++] = {slab, 1};
  }
  slabs().engage(slab);
}

void Thread::disengage(Slab* slab) {
  int i = levels_ - 1;
  while (i >= 0 && level_[i].slab != slab) --i;
  if (i < 0) {
    if (is_forked_) return;
    throw std::logic_error("the arena is not engaged in this thread");
  }
  if (--level_[i].count == 0) {
    --levels_;
    std::copy(level_ + i + 1, level_ + levels_ + 1, level_ + i);
    if (i > 0 && i < levels_ && level_[i - 1].slab == level_[i].slab) {  // what lay between them is gone
      level_[i - 1].count += level_[i].count;
      --levels_;
      std::copy(level_ + i + 1, level_ + levels_ + 1, level_ + i);
    }
  }
  while (run_ != nullptr && (levels_ == 0 || (run_->slab == slab && engagements_of(slab) == 0))) end_run();
  slabs().disengage(slab);
  slab->disengaged();
}

int Thread::engagements_of(const Slab* slab) const {
  int count = 0;
  for (int i = 0; i < levels_; ++i)
    if (level_[i].slab == slab) count += level_[i].count;
  return count;
}

void Thread::enter(std::shared_ptr<const Table> table) {
  if (slab() == nullptr) throw std::logic_error("a segment runs with planned addresses only while an arena is engaged");
  if (table->height_B() > slab()->arena().capacity_B())
    throw std::logic_error("the table's places reach past the engaged arena: plan for its capacity");
  if (pool_ == nullptr) pool_ = new Runs;
  if (static_cast<std::size_t>(runs_) == pool_->runs.size()) pool_->runs.emplace_back();
  run_ = &pool_->runs[static_cast<std::size_t>(runs_++)];
  run_->begin(std::move(table), slab());
}

std::int64_t Thread::leave() {
  if (run_ == nullptr) {
    if (is_forked_) return 0;
    throw std::logic_error("no segment has been entered in this thread");
  }
  return end_run();
}

std::int64_t Thread::end_run() {
  Run& run = *run_;
  run.at(-1);
  run.slab->finish(run);
  run.table = nullptr;
  --runs_;
  run_ = runs_ == 0 ? nullptr : &pool_->runs[static_cast<std::size_t>(runs_ - 1)];
  return run.hits;
}

void Thread::refuse_statement() const {
  if (run_ == nullptr) {
    if (is_forked_) return;
    throw std::logic_error("no segment has been entered in this thread");
  }
  throw std::out_of_range("the segment's table has no such statement");
}

void Thread::undo_everything() {
  while (levels_ > 0) disengage(level_[levels_ - 1].slab);
  delete pool_;
  pool_ = nullptr;
}

void Thread::forget_everything() {
  is_forked_ = true;
  levels_ = runs_ = suspensions_ = 0;
  run_ = nullptr;
}

}  // namespace lowtide::shim
