#include "foresight.hpp"

#include <algorithm>
#include <utility>

#include "greedy.hpp"

namespace lowtide::eager {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr Bytes UNIT_B = 64;  // blocks are whole units
constexpr Index REACH = 64;   // how many calls may be left out

Bytes reserved(Bytes size_B) { return (std::max<Bytes>(size_B, 1) + UNIT_B - 1) / UNIT_B * UNIT_B; }

// Stages one after the other.
struct Stage {
  std::vector<lowtide::Index> outputs, reads, takes;
  Nanoseconds cost_ns = 0;
  Bytes temps_B = 0;
  bool recomputations = false;
};

void add(Program& program, const Stage& stage) {
  Bytes made_B = stage.temps_B, taken_B = 0;
  for (lowtide::Index v : stage.outputs) made_B += program.size[at(v)];
  for (lowtide::Index v : stage.takes) taken_B += program.size[at(v)];
  program.outputs.push_row(stage.outputs);
  program.reads.push_row(stage.reads);
  program.takeovers.push_row(stage.takes);
  program.run_time.push_back(stage.cost_ns);
  program.recompute_time.push_back(stage.cost_ns);
  program.trace_peak.push_back(made_B);
  program.recompute_peak.push_back(made_B);
  program.takeover_peak.push_back(std::max<Bytes>(0, made_B - taken_B));
  program.recompute_through.push_back(stage.recomputations ? NEVER : -1);
  program.part.push_back(0);
  program.opened.push_back(0);
}

}  // namespace

Foresight::Foresight(const Tape& tape) {
  Stage leaves;
  std::vector<Stage> calls;
  const auto count = at(tape.contents());
  std::vector<lowtide::Index> lost(count, NEVER);
  std::vector<char> is_leaf(count, 0);
  std::vector<lowtide::Index> settled;  // since the last call
  program_.pinned_from.assign(count, NEVER);
  program_.size.assign(count, 0);
  std::vector<Bytes> sizes_B(count, 0);  // as they were asked for
  Tape::Number next = 1;
  Signature all(0);
  signatures_.push_back(0);
  first_output_.push_back(1);
  const auto value = [](Tape::Number number) { return static_cast<lowtide::Index>(number - 1); };
  const auto settle = [&](Stage& by, lowtide::Index stage) {
    by.reads = std::exchange(settled, {});
    for (lowtide::Index v : by.reads) program_.pinned_from[at(v)] = stage;
  };
  for (const Tape::Event& event : tape.events()) {
    const auto stage = static_cast<lowtide::Index>(calls.size());
    if (event.kind == Tape::LEAF) {
      program_.size[at(next - 1)] = reserved(sizes_B[at(next - 1)] = event.number_or_size);
      is_leaf[at(next - 1)] = 1;
      leaves.outputs.push_back(value(next++));
    } else if (event.kind == Tape::DIED) {
      lost[at(event.number_or_size - 1)] = stage;
      settled.erase(std::remove(settled.begin(), settled.end(), value(event.number_or_size)), settled.end());
      all.add(static_cast<std::uint64_t>(event.number_or_size));
    } else if (event.kind == Tape::SETTLED) {
      settled.push_back(value(event.number_or_size));
    } else {
      Stage call;
      settle(call, stage + 1);
      Signature signature(event.name);
      for (Tape::Number number : event.inputs) {
        const lowtide::Index v = value(number);
        signature.add_size(sizes_B[at(v)]);
        all.add(static_cast<std::uint64_t>(number));
        if (std::find(call.reads.begin(), call.reads.end(), v) == call.reads.end()) call.reads.push_back(v);
      }
      for (const Consumed& c : event.consumed) {
        const lowtide::Index v = value(event.inputs[at(c.input)]);
        call.takes.push_back(v);
        lost[at(v)] = stage + 1;
      }
      first_output_.push_back(next);
      for (Bytes size_B : event.sizes_B) {
        program_.size[at(next - 1)] = reserved(sizes_B[at(next - 1)] = size_B);
        call.outputs.push_back(value(next++));
        all.add(static_cast<std::uint64_t>(size_B));
      }
      call.cost_ns = event.cost_ns;
      for (Bytes size_B : event.temps_B) call.temps_B += reserved(size_B);
      call.recomputations = event.kind == Tape::RAN;
      signatures_.push_back(signature.value());
      all.add(signature.value());
      calls.push_back(std::move(call));
    }
  }
  Stage end;
  settle(end, static_cast<lowtide::Index>(calls.size()) + 1);
  for (Tape::Number number : tape.kept())
    if (std::find(end.reads.begin(), end.reads.end(), value(number)) == end.reads.end()) end.reads.push_back(value(number));
  add(program_, leaves);
  start_ns_.assign(1, 0);
  Nanoseconds clock_ns = 0;
  for (const Stage& call : calls) {
    add(program_, call);
    start_ns_.push_back(clock_ns);
    clock_ns += call.cost_ns;
  }
  add(program_, end);
  start_ns_.push_back(clock_ns);
  signatures_.push_back(0);
  first_output_.push_back(next);
  for (std::size_t v = 0; v < count; ++v)
    if (is_leaf[v]) program_.pinned_from[v] = 0, lost[v] = NEVER;
  program_.lost_from = lost;
  program_.fetch_B.assign(count, -1);
  program_.send_B.assign(count, 0);
  program_.index();
  digest_ = all.value();
}

std::int64_t Foresight::plan(Bytes budget_B, Index steps) {
  Retention state(program_, budget_B);
  taus_.clear();
  if (!state.is_possible()) return 0;
  Greedy greedy(state);
  greedy.run(steps);
  taus_ = state.taus();
  return greedy.tried();
}

Index Foresight::find(std::uint64_t signature, Index next) const {
  const Index end = std::min(stages() - 1, next + REACH);
  for (Index stage = next; stage < end; ++stage)
    if (signatures_[at(stage)] == signature) return stage;
  return 0;
}

bool Foresight::is_spare(Tape::Number number, Index last, Index now) const {
  const auto v = static_cast<lowtide::Index>(number - 1);
  const Index when = last == now ? now + 1 : now;
  if (taus_.empty() || when >= stages() || when <= program_.producer[at(v)]) return false;
  const lowtide::Index gap = program_.gap_at(v, when);
  lowtide::Index retention = taus_[at(gap)];
  if (retention == KEEP && program_.is_lost(gap)) retention = program_.lost_retention(gap);
  return last < retention;
}

Nanoseconds Foresight::distance_ns(Tape::Number number, Index last, Index now) const {
  const auto v = static_cast<lowtide::Index>(number - 1);
  const lowtide::Slice uses = program_.uses[v];
  const lowtide::Index* next = std::lower_bound(uses.begin(), uses.end(), last == now ? now + 1 : now);
  if (next == uses.end()) return NEVER_USED;
  if (*next >= std::min(stages() - 1, program_.pinned_from[at(v)])) return STAYS;
  return start_ns_[at(*next)] - start_ns_[at(std::min(now, stages() - 1))];
}

}  // namespace lowtide::eager
