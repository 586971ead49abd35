// Tide with memory: a step is recorded, rehearsed, and the next one guided by what was found.
//
// Simulations do not know everything that a step does. So the candidates that a rehearsal found to spend less than tide
// are choices, and so is tide: each is worth what the last step that it guided spent, or else what its rehearsal did.
// The one of least worth guides the next step. Where a step spends more than was foreseen, candidates for fewer bytes
// join.
//
// A step is rehearsed once it has come twice, one after the other: programs whose steps never repeat go as by tide, and
// do not pay for rehearsals. A step that runs like the record, with as many bytes of others, needs no new one; one that
// diverges goes on as tide where the record says nothing, and so does the one after it.
#include <algorithm>
#include <iterator>
#include <limits>

#include "../rehearsal.hpp"
#include "../step_record.hpp"
#include "families.hpp"
#include "guided.hpp"

namespace lowtide::eager {

namespace {

constexpr std::int64_t TOLERANCE = 50;  // one call, or byte, in so many may be elsewhere in a step like the record
constexpr int MOST_REHEARSALS = 16;     // of steps like the record
constexpr int MOST_CHANGES = 16;        // of the candidate, for one record
constexpr double SHARES[] = {1, 0.92, 0.84};  // of the capacity, that steps are rehearsed for

class TideMemory final : public Guided {
 public:
  explicit TideMemory(const PolicyOptions& options) : Guided(options), options_(options) {}
  const char* name() const override { return "tide-memory"; }
  int passes() const override { return 3; }  // the second is rehearsed, since it is like the first

  void began(Scene& scene, std::uint64_t name, Slice<ValueId> inputs) override {
    if (record_.is_empty()) {
      found_B_ = scene.capacity.in_use_B();
      recompute_ns_ = scene.recompute_ns;
      moved_B_ = scene.moved_B;
    }
    Guided::began(scene, name, inputs);
  }
  void ended(Scene& scene, CallId call) override {
    ++calls_;
    record_.ended(scene.ledger, call);
    Guided::ended(scene, call);
  }
  void used(Scene& scene, std::uint64_t name, Slice<ValueId> inputs, Nanoseconds cost_ns) override {
    if (!is_inside()) return;
    ++calls_;
    record_.used(scene.ledger, name, inputs, cost_ns);
    Guided::used(scene, name, inputs, cost_ns);
  }
  void settled(Scene& scene, ValueId root) override { record_.settled(scene.ledger, root); }
  void died(Scene& scene, ValueId root) override {
    const Value& v = scene.ledger[root];
    if (!record_.died(scene.ledger, root) && v.is_resident()) found_B_ -= scene.capacity.reserved_for(v.size_B);
  }

  void step_ended(Scene& scene) override {
    const StepRecord::Step step = record_.take(scene.ledger, scene.capacity);
    const Bytes capacity_B = scene.capacity.capacity_B() - std::max<Bytes>(0, found_B_ - step.leaves_B);
    if (calls_ > 0 && capacity_B > 0) {
      const Nanoseconds spent_ns = scene.recompute_ns - recompute_ns_ + moves_ns(scene.moved_B - moved_B_);
      const Bytes change_B = capacity_B > rehearsed_B_ ? capacity_B - rehearsed_B_ : rehearsed_B_ - capacity_B;
      const bool has_changed = change_B > scene.capacity.capacity_B() / TOLERANCE && rehearsals_ < MOST_REHEARSALS;
      const bool was_guided = advises() && !is_doubted();
      doubt(departed());
      if (!foresight() || departed())
        look_for_another(step, capacity_B, spent_ns);
      else if (has_changed)
        begin(step, capacity_B, was_guided ? UNKNOWN : spent_ns);
      else
        compare(step, capacity_B, spent_ns, was_guided ? followed_choice_ : 0);
    }
    divergences_before_ = divergences();
    calls_ = 0;
    Guided::step_ended(scene);
  }

 private:
  static constexpr Nanoseconds UNKNOWN = -1;
  // A candidate that the next step may follow.
  struct Choice {
    std::size_t rehearsal;   // in found_
    Candidate candidate;
    bool advises;            // false: as tide
    Nanoseconds foreseen_ns;
    Nanoseconds spent_ns;    // by the last step that followed it, on recomputations and slides
    Nanoseconds worth_ns() const {
      if (spent_ns != UNKNOWN) return spent_ns;
      return foreseen_ns != UNKNOWN ? foreseen_ns : std::numeric_limits<Nanoseconds>::max();
    }
  };

  bool departed() const {
    const std::int64_t tolerated = calls_ / TOLERANCE;
    return foresight() && (divergences() - divergences_before_ > tolerated || foresight()->stages() - 2 - followed() > tolerated);
  }

  static Tape tape_of(const StepRecord::Step& step) { return {step.words, step.kept}; }

  // A first step, or one that departed: the next one goes on as tide. If the last one was like it, it is what comes from
  // now on.
  void look_for_another(const StepRecord::Step& step, Bytes capacity_B, Nanoseconds spent_ns) {
    const std::uint64_t digest = Foresight(tape_of(step)).digest();
    if (digest == digest_) {
      rehearsals_ = 0;
      begin(step, capacity_B, spent_ns);
    }
    digest_ = digest;
  }

  // `spent_ns`: by the step, if it went on as tide.
  void begin(const StepRecord::Step& step, Bytes capacity_B, Nanoseconds spent_ns) {
    rehearsed_B_ = capacity_B;
    found_.clear();
    choices_.clear();
    changes_ = 0;
    rehearse_for(step, capacity_B);
    choices_.insert(choices_.begin(), {0, {}, false, found_[0].unguided_ns, UNKNOWN});
    follow(cheapest());
    choices_[0].spent_ns = spent_ns;  // what rehearsals say is compared before
  }

  void rehearse_for(const StepRecord::Step& step, Bytes capacity_B) {
    ++rehearsals_;
    found_.push_back(rehearse(tape_of(step), capacity_B, options_, density()));
    for (const Rehearsed::Tried& gain : found_.back().gains)
      choices_.push_back({found_.size() - 1, gain.candidate, true, gain.spent_ns, UNKNOWN});
  }

  std::size_t cheapest() const {
    const auto is_less = [](const Choice& a, const Choice& b) { return a.worth_ns() < b.worth_ns(); };
    return static_cast<std::size_t>(std::min_element(choices_.begin(), choices_.end(), is_less) - choices_.begin());
  }

  void follow(std::size_t choice) {
    const Choice& next = choices_[followed_choice_ = choice];
    const Rehearsed& found = found_[next.rehearsal];
    if (next.advises) found.prepare(next.candidate);
    guide(found.foresight, next.candidate, next.advises);
  }

  // What a step has spent that followed a choice: perhaps another one is worth more.
  void compare(const StepRecord::Step& step, Bytes capacity_B, Nanoseconds spent_ns, std::size_t followed) {
    Choice& last = choices_[followed];
    last.spent_ns = spent_ns;
    const bool is_as_foreseen = last.foreseen_ns >= 0 && spent_ns - last.foreseen_ns <= last.foreseen_ns / TOLERANCE;
    if (!is_as_foreseen && found_.size() < std::size(SHARES) && rehearsals_ < MOST_REHEARSALS)
      rehearse_for(step, static_cast<Bytes>(static_cast<double>(capacity_B) * SHARES[found_.size()]));
    const std::size_t best = cheapest();
    if (best == followed_choice_) return;
    const Nanoseconds gain_ns = spent_ns - choices_[best].worth_ns();
    if (gain_ns <= spent_ns / TOLERANCE || changes_ >= MOST_CHANGES) return;
    ++changes_;
    follow(best);
  }

  PolicyOptions options_;
  StepRecord record_;
  std::uint64_t digest_ = 0;  // of the last step that departed
  Bytes found_B_ = 0;         // in use when the step began, without what died since
  Bytes rehearsed_B_ = 0;     // the capacity of the last rehearsal
  int rehearsals_ = 0;        // of steps like the record
  int changes_ = 0;           // from one choice to another, since the record
  Nanoseconds recompute_ns_ = 0;  // before this step
  Bytes moved_B_ = 0;
  std::int64_t calls_ = 0, divergences_before_ = 0;
  std::vector<Rehearsed> found_;  // of the record, for each of SHARES so far
  std::vector<Choice> choices_;   // the first one is tide
  std::size_t followed_choice_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_tide_memory(const PolicyOptions& options) { return std::make_unique<TideMemory>(options); }

}  // namespace lowtide::eager
