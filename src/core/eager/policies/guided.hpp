// Guided: tide, told by a foresight what comes.
//
// The policy follows the calls through the recorded step. At a known position, a value that this step made is minded by
// what the foresight says of it: nothing where it is spare, most of all where it is kept from its next use on, else the
// cost of rematerialising it by how long it is until its next use. Anything else, and everything where a call diverges
// from the record, is minded as by tide.
#pragma once
#include <memory>

#include "../foresight.hpp"
#include "tide.hpp"

namespace lowtide::eager {

class Guided : public AbstractTide {
 public:
  using AbstractTide::AbstractTide;
  const char* name() const override { return "guided"; }
  // `advises`: whether what it says of values is used; else the policy only follows the calls.
  void guide(std::shared_ptr<const Foresight> foresight, const Candidate& candidate, bool advises) {
    foresight_ = std::move(foresight);
    candidate_ = candidate;
    advises_ = advises;
    is_doubted_ = false;
  }
  // Rehearsals suppose it of what a step finds; where it lies otherwise, a plan that was found for it goes otherwise.
  bool begins_compacted() const override { return advises_ && !is_doubted_; }
  // Calls that were not where the record has them.
  std::int64_t divergences() const override { return divergences_; }

  void began(Scene& scene, std::uint64_t name, Slice<ValueId> inputs) override;
  void ended(Scene& scene, CallId call) override;
  void used(Scene& scene, std::uint64_t name, Slice<ValueId> inputs, Nanoseconds cost_ns) override;
  void restored(Scene& scene, ValueId value) override;
  void step_ended(Scene& scene) override;

 protected:
  // Whether what it says of values waits until a step is like the record again.
  void doubt(bool is_doubted) { is_doubted_ = is_doubted; }
  bool is_doubted() const { return is_doubted_; }
  double mind(Scene& scene, ValueId id) override;
  bool advises() const { return advises_; }
  bool is_inside() const { return is_inside_; }  // the call that ended the step by what it wrote began before
  Index followed() const { return followed_; }  // calls of this step that were found in the record
  const Foresight* foresight() const { return foresight_.get(); }

 private:
  bool follow();
  struct Known {
    std::int64_t serial = -1;
    Tape::Number number = 0;
    Index last = 0;  // the stage in which it was touched last
  };
  Known* known(const Ledger& ledger, ValueId id);
  void touch(const Ledger& ledger, ValueId id);

  std::shared_ptr<const Foresight> foresight_;
  Candidate candidate_;
  bool advises_ = false;
  bool is_doubted_ = false;
  std::vector<Known> known_;  // by ValueId
  bool is_inside_ = false;  // a call has begun since the step did
  Index stage_ = 0, next_ = 1, followed_ = 0;  // stage_ 0: it is not known where the step is
  std::int64_t divergences_ = 0;
};

}  // namespace lowtide::eager
