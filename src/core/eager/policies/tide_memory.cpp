// Tide with memory: a step is recorded, rehearsed, and the next one guided by what was found.
//
// A step that runs like the record needs no new one. One that departs goes on as tide where the record says nothing; it is
// rehearsed once a step like it has come twice, so that programs whose steps never repeat do not pay for rehearsals.
#include <algorithm>

#include "../rehearsal.hpp"
#include "../step_record.hpp"
#include "families.hpp"
#include "guided.hpp"

namespace lowtide::eager {

namespace {

constexpr std::int64_t TOLERANCE = 50;  // one call in so many may be elsewhere in a step that is like the record

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
  void died(Scene& scene, ValueId root) override { record_.died(scene.ledger, root); }

  void step_ended(Scene& scene) override {
    std::vector<std::int64_t> words;
    std::vector<Tape::Number> kept;
    Bytes leaves_B = 0;
    const bool departed = !foresight() || departures() - departures_ > calls_ / TOLERANCE ||
                          foresight()->stages() - 2 - followed() > calls_ / TOLERANCE;
    record_.take(scene.ledger, words, kept, leaves_B);
    if (calls_ > 0 && departed) {
      const Bytes other_B = std::max<Bytes>(0, found_B_ - leaves_B);
      remember(std::make_shared<Tape>(std::move(words), std::move(kept)), scene.room.capacity_B() - other_B);
    }
    departures_ = departures();
    calls_ = 0;
    Guided::step_ended(scene);
  }

 private:
  void remember(const std::shared_ptr<const Tape>& tape, Bytes capacity_B) {
    const std::uint64_t digest = Foresight(*tape).digest();
    if (capacity_B > 0 && (!foresight() || digest == digest_)) {
      const Rehearsed found = rehearse(*tape, capacity_B, options_);
      guide(found.foresight, found.way, found.advises);
    }
    digest_ = digest;
  }

  PolicyOptions options_;
  StepRecord record_;
  std::uint64_t digest_ = 0;  // of the last step that departed
  Bytes found_B_ = 0;         // in use when the step began
  std::int64_t calls_ = 0, departures_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_tide_memory(const PolicyOptions& options) { return std::make_unique<TideMemory>(options); }

}  // namespace lowtide::eager
