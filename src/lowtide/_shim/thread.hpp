// Thread: which slab serves the calling thread, and which segment of generated code it runs.
//
// Engagements are counted: a slab serves until it is disengaged as often as it was engaged, in whatever order, and the
// slab that was engaged last goes first. Segments nest. A segment plans for the slab that serves when it is entered:
// another one that is engaged meanwhile serves without a plan. With a slab's last engagement its innermost segments
// end too, should leave() have been forgotten.
// While a thread is suspended nothing serves it, and what it has engaged and entered is kept for when it resumes.
// INVARIANT: neighbouring levels hold different slabs, counts are above zero; run() is the innermost run, or null.
// A child process starts with neither, and forgives it when the code that it returns to undoes what its parent did.
// Reading costs a look at thread-local memory; nothing here is shared between threads.
#pragma once
#include <cstdint>
#include <memory>

#include "slab.hpp"
#include "table.hpp"

namespace lowtide::shim {

class Runs;  // the pool of runs of one thread

class Thread {
 public:
  static constexpr int MOST_LEVELS = 32;

  static Thread& mine();

  Slab* slab() const { return levels_ == 0 || suspensions_ > 0 ? nullptr : level_[levels_ - 1].slab; }
  Run* run() const { return run_; }
  int levels() const { return levels_; }

  void suspend() { ++suspensions_; }
  void resume() { suspensions_ -= suspensions_ > 0; }
  void engage(Slab* slab);       // throws std::logic_error: too deep, or closed
  void disengage(Slab* slab);    // throws std::logic_error: nothing to undo
  void enter(std::shared_ptr<const Table> table);  // throws std::logic_error outside an engagement
  std::int64_t leave();          // the hits of the run that ends; throws std::logic_error
  // Throws std::out_of_range or std::logic_error.
  void at(std::int64_t statement) {
    if (run_ == nullptr || static_cast<std::uint64_t>(statement) >= static_cast<std::uint64_t>(run_->table->statements())) {
      refuse_statement();
    } else {
      run_->at(statement);
    }
  }
  void undo_everything();        // at the end of a thread
  void forget_everything();      // in a forked child: the slabs have forgotten it already

 private:
  struct Level {
    Slab* slab;
    int count;
  };

  void refuse_statement() const;
  int engagements_of(const Slab* slab) const;
  std::int64_t end_run();

  Level level_[MOST_LEVELS]{};
  int levels_ = 0, runs_ = 0, suspensions_ = 0;
  bool is_forked_ = false;
  Run* run_ = nullptr;
  Runs* pool_ = nullptr;
};

}  // namespace lowtide::shim
