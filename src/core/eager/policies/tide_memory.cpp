// Tide with memory: a step is recorded, rehearsed, and the next one guided by what was found.
//
// A step that runs like the record, beside as many bytes of others, needs no new one. One that departs goes on as tide where the record says nothing; it is
// rehearsed once a step like it has come twice, so that programs whose steps never repeat do not pay for rehearsals.
#include <algorithm>

#include "../rehearsal.hpp"
#include "../step_record.hpp"
#include "families.hpp"
#include "guided.hpp"

namespace lowtide::eager {

namespace {

constexpr std::int64_t TOLERANCE = 50;  // one call, or byte, in so many may be elsewhere in a step like the record
constexpr int MOST_REHEARSALS = 8;      // of like steps, for other capacities

class TideMemory final : public Guided {
 public:
  explicit TideMemory(const PolicyOptions& options) : Guided(options), options_(options) {}
  const char* name() const override { return "tide-memory"; }
  int passes() const override { return 2; }

  void began(Scene& scene, std::uint64_t name, Slice<ValueId> inputs) override {
    if (record_.is_empty()) found_B_ = scene.room.in_use_B();
    Guided::began(scene, name, inputs);
  }
  void ended(Scene& scene, CallId call) override {
    ++calls_;
    record_.ended(scene.ledger, call);
    Guided::ended(scene, call);
  }
  void died(Scene& scene, ValueId root) override {
    const Value& v = scene.ledger[root];
    if (!record_.died(scene.ledger, root) && v.is_resident()) found_B_ -= scene.room.reserved_for(v.size_B);
  }

  void step_ended(Scene& scene) override {
    StepRecord::Step step = record_.take(scene.ledger);
    const Bytes capacity_B = scene.room.capacity_B() - std::max<Bytes>(0, found_B_ - step.leaves_B);
    if (calls_ > 0 && capacity_B > 0) {
      const bool has_departed = departed();
      const Bytes change_B = capacity_B > rehearsed_B_ ? capacity_B - rehearsed_B_ : rehearsed_B_ - capacity_B;
      const bool has_changed = change_B > scene.room.capacity_B() / TOLERANCE && rehearsals_ < MOST_REHEARSALS;
      if (!foresight() || has_departed || has_changed)
        remember(std::move(step), capacity_B, has_departed);
    }
    departures_ = departures();
    calls_ = 0;
    Guided::step_ended(scene);
  }

 private:
  bool departed() const {
    const std::int64_t tolerated = calls_ / TOLERANCE;
    return foresight() && (departures() - departures_ > tolerated || foresight()->stages() - 2 - followed() > tolerated);
  }

  void remember(StepRecord::Step&& step, Bytes capacity_B, bool has_departed) {
    const Tape tape(std::move(step.words), std::move(step.kept));
    const std::uint64_t digest = Foresight(tape).digest();
    if (!has_departed || digest == digest_) {
      const Rehearsed found = rehearse(tape, step.fixed, capacity_B, options_);
      guide(found.foresight, found.way, found.advises);
      rehearsed_B_ = capacity_B;
      rehearsals_ = has_departed ? 1 : rehearsals_ + 1;
    }
    digest_ = digest;
  }

  PolicyOptions options_;
  StepRecord record_;
  std::uint64_t digest_ = 0;  // of the last step that departed
  Bytes found_B_ = 0;         // in use when the step began, without what died since
  Bytes rehearsed_B_ = 0;     // the capacity of the last rehearsal
  int rehearsals_ = 0;        // of steps like the record
  std::int64_t calls_ = 0, departures_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_tide_memory(const PolicyOptions& options) { return std::make_unique<TideMemory>(options); }

}  // namespace lowtide::eager
