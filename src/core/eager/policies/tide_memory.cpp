// Tide with memory: a step is recorded, rehearsed, and the next one guided by what was found.
//
// A step that runs like the record, beside as many bytes of others, needs no new one. One that departs goes on as tide
// where the record says nothing; it is rehearsed once a step like it has come twice, so that programs whose steps never
// repeat do not pay for rehearsals.
#include <algorithm>
#include <iterator>

#include "../rehearsal.hpp"
#include "../step_record.hpp"
#include "families.hpp"
#include "guided.hpp"

namespace lowtide::eager {

namespace {

constexpr std::int64_t TOLERANCE = 50;  // one call, or byte, in so many may be elsewhere in a step like the record
constexpr int MOST_REHEARSALS = 16;     // of steps like the record
constexpr double SHARES[] = {1, 0.92, 0.84};  // of the capacity, that plans are tried for

class TideMemory final : public Guided {
 public:
  explicit TideMemory(const PolicyOptions& options) : Guided(options), options_(options) {}
  const char* name() const override { return "tide-memory"; }
  int passes() const override { return 2; }

  void began(Scene& scene, std::uint64_t name, Slice<ValueId> inputs) override {
    if (record_.is_empty()) {
      found_B_ = scene.room.in_use_B();
      began_ns_ = scene.ledger.clock();
      moved_B_ = scene.moved_B;
    }
    Guided::began(scene, name, inputs);
  }
  void ended(Scene& scene, CallId call) override {
    ++calls_;
    calls_ns_ += scene.ledger.call(call).cost_ns;
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
      const Bytes change_B = capacity_B > rehearsed_B_ ? capacity_B - rehearsed_B_ : rehearsed_B_ - capacity_B;
      const bool has_changed = change_B > scene.room.capacity_B() / TOLERANCE && rehearsals_ < MOST_REHEARSALS;
      doubt(departed());
      if (departed())
        return_to(step, capacity_B);
      else if (!foresight() || has_changed)
        begin(step, capacity_B);
      else if (!is_settled_)
        compare(step, capacity_B, scene.ledger.clock() - began_ns_ - calls_ns_ + moves_ns(scene.moved_B - moved_B_));
    }
    departures_ = departures();
    calls_ = calls_ns_ = 0;
    Guided::step_ended(scene);
  }

 private:
  struct Trial {
    Rehearsed found;
    Nanoseconds spent_ns = -1;  // by the step that it guided, on reruns and moves
  };

  bool departed() const {
    const std::int64_t tolerated = calls_ / TOLERANCE;
    return foresight() && (departures() - departures_ > tolerated || foresight()->stages() - 2 - followed() > tolerated);
  }

  static Tape tape_of(const StepRecord::Step& step) { return {step.words, step.kept}; }

  // A step that departed: the next one goes on as tide; if one like it did so before, it is what comes from now on.
  void return_to(const StepRecord::Step& step, Bytes capacity_B) {
    const std::uint64_t digest = Foresight(tape_of(step)).digest();
    if (digest == digest_) {
      rehearsals_ = 0;
      begin(step, capacity_B);
    }
    digest_ = digest;
  }

  void begin(const StepRecord::Step& step, Bytes capacity_B) {
    rehearsed_B_ = capacity_B;
    trials_.clear();
    attempt(rehearse(tape_of(step), step.fixed, capacity_B, options_));
    is_settled_ = false;
  }

  void attempt(Rehearsed found) {
    ++rehearsals_;
    trials_.push_back({std::move(found)});
    use(trials_.back());
  }

  void use(const Trial& trial) { guide(trial.found.foresight, trial.found.way, trial.found.advises); }

  // Simulations do not know everything: where a step spends more than its rehearsal, plans for less room
  // have a step each, then tide has, and the cheapest stays.
  void compare(const StepRecord::Step& step, Bytes capacity_B, Nanoseconds spent_ns) {
    trials_.back().spent_ns = spent_ns;
    const std::size_t tried = trials_.size();
    const Nanoseconds foreseen_ns = trials_[0].found.spent_ns;
    is_settled_ = tried == 1 && spent_ns - foreseen_ns <= foreseen_ns / TOLERANCE;
    if (is_settled_) return;
    if (tried < std::size(SHARES)) {
      const Bytes less_B = static_cast<Bytes>(static_cast<double>(capacity_B) * SHARES[tried]);
      attempt(rehearse(tape_of(step), step.fixed, less_B, options_));
    } else if (tried == std::size(SHARES)) {
      Rehearsed unguided = trials_[0].found;
      unguided.advises = false;
      attempt(std::move(unguided));
    } else {
      is_settled_ = true;
      use(*std::min_element(trials_.begin(), trials_.end(),
                            [](const Trial& a, const Trial& b) { return a.spent_ns < b.spent_ns; }));
    }
  }

  PolicyOptions options_;
  StepRecord record_;
  std::uint64_t digest_ = 0;  // of the last step that departed
  Bytes found_B_ = 0;         // in use when the step began, without what died since
  Bytes rehearsed_B_ = 0;     // the capacity of the last rehearsal
  int rehearsals_ = 0;        // of steps like the record
  Nanoseconds began_ns_ = 0, calls_ns_ = 0;
  Bytes moved_B_ = 0;  // before this step
  std::int64_t calls_ = 0, departures_ = 0;
  std::vector<Trial> trials_;  // of plans for the record; the last one guides until all are settled
  bool is_settled_ = false;
};

}  // namespace

std::unique_ptr<Policy> make_tide_memory(const PolicyOptions& options) { return std::make_unique<TideMemory>(options); }

}  // namespace lowtide::eager
