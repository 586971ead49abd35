// The ledger: what is kept, what leaves, and who takes over whose bytes.
#include "eager/ledger.hpp"

#include <vector>

#include "expect.hpp"

using namespace lowtide;
using namespace lowtide::eager;

namespace {

struct Log final : Witness {
  explicit Log(Ledger& ledger) : ledger_(ledger) { ledger.set_witness(this); }
  void value_leaves(ValueId value) override { values.push_back(ledger_[value].serial); }
  void call_leaves(CallId call) override { calls.push_back(ledger_.call(call).serial); }
  std::vector<std::int64_t> values, calls;

 private:
  Ledger& ledger_;
};

// A call of unit cost; its outputs are resident from `offset_B` on.
std::vector<ValueId> run(Ledger& ledger, std::vector<ValueId> inputs, std::vector<Made> made, Bytes offset_B = 0) {
  CallSpec spec;
  spec.cost_ns = 1;
  spec.inputs = inputs;
  spec.outputs = made;
  const CallId call = ledger.add(spec);
  std::vector<ValueId> outputs;
  for (const Output& output : ledger.call(call).outputs) {
    outputs.push_back(output.value);
    ledger.place(output.value, offset_B);
    offset_B += 64;
  }
  EXPECT(ledger.check().empty());
  return outputs;
}

void die(Ledger& ledger, ValueId value) {
  ledger.set_alive(value, false);
  ledger.settle(value);
  EXPECT(ledger.check().empty());
}

void what_is_needed_stays() {
  Ledger ledger;
  Log log(ledger);
  const ValueId x = ledger.leaf(8, 0);
  const ValueId a = run(ledger, {x}, {{8}})[0];
  const ValueId b = run(ledger, {a, a}, {{8}})[0];
  die(ledger, x);
  die(ledger, a);
  EXPECT(ledger.values() == 3 && ledger.calls() == 2 && log.values.empty());  // b needs a, and a needs x
  EXPECT(ledger[a].readers.size() == 1);                                      // one reader, though named twice
  ledger.pin(b);
  die(ledger, b);
  EXPECT(ledger.values() == 3);
  ledger.unpin(b);
  ledger.settle(b);
  EXPECT((log.values == std::vector<std::int64_t>{3, 2, 1}) && (log.calls == std::vector<std::int64_t>{2, 1}));
  EXPECT(ledger.values() == 0 && ledger.calls() == 0 && ledger.candidates().empty());
}

void one_needed_output_keeps_its_call() {
  Ledger ledger;
  Log log(ledger);
  const ValueId x = ledger.leaf(8, 0);
  const std::vector<ValueId> twins = run(ledger, {x}, {{8}, {16}});
  die(ledger, twins[0]);
  EXPECT(log.values.empty());
  ledger.commit(twins[1]);  // it depends on nothing any more: its twin's last reason to be kept is gone
  EXPECT((log.values == std::vector<std::int64_t>{2}) && log.calls.size() == 1);
  EXPECT(ledger[twins[1]].is_leaf() && !ledger[twins[1]].is_candidate() && ledger[x].readers.empty());
}

void slots_are_used_again_and_serials_are_not() {
  Ledger ledger;
  const ValueId x = ledger.leaf(8, 0);
  for (int i = 0; i < 1000; ++i) die(ledger, run(ledger, {x}, {{8}})[0]);
  EXPECT(ledger.value_slots() == 2 && ledger.call_slots() == 1);
  EXPECT(ledger[run(ledger, {x}, {{8}})[0]].serial == 1002);
}

void candidates_are_filed_when_they_become_evictable() {
  Ledger ledger;
  const ValueId x = ledger.leaf(8, 0);
  const ValueId a = run(ledger, {x}, {{8}})[0], b = run(ledger, {x}, {{8}})[0];
  EXPECT(ledger.candidates().size() == 2 && ledger[a].filed < ledger[b].filed);
  ledger.pin(a);
  EXPECT(!ledger[a].is_evictable());
  ledger.unpin(a);
  EXPECT(ledger[a].is_evictable() && ledger[a].filed > ledger[b].filed);
  ledger.displace(a);
  ledger.set_place(b);
  EXPECT(ledger.candidates().empty() && ledger[a].is_evicted());
  ledger.place(a, 64);
  EXPECT(ledger.candidates().size() == 1 && ledger.check().empty());
}

void a_view_goes_and_costs_with_its_root() {
  Ledger ledger;
  const ValueId x = ledger.leaf(8, 0);
  const ValueId a = run(ledger, {x}, {{8}})[0];
  const ValueId view = run(ledger, {a}, {{0, 0, a}})[0];
  const ValueId view_of_view = run(ledger, {view}, {{0, 0, view}})[0];
  EXPECT(ledger[view_of_view].root == a && ledger[a].cost_ns == 3 && ledger[a].views.size() == 2);
  ledger.pin(view);
  EXPECT(ledger[a].pins == 1);
  ledger.unpin(view_of_view);
  EXPECT(ledger[a].pins == 0);
  ledger.displace(a);
  EXPECT(!ledger[view].is_resident() && !ledger[view_of_view].is_resident());
  die(ledger, view_of_view);
  EXPECT(ledger[a].views.size() == 1);
}

void what_is_written_over_can_be_made_again() {
  Ledger ledger;
  const ValueId x = ledger.leaf(8, 0);
  const ValueId a = run(ledger, {x}, {{8}}, 128)[0];
  const Consumed consumed{0, 0};
  const Made made{8};
  CallSpec spec;
  spec.inputs = {&a, 1};
  spec.outputs = {&made, 1};
  spec.consumed = {&consumed, 1};
  const ValueId b = ledger.call(ledger.add(spec)).outputs[0].value;
  ledger.take_over(a, b);
  EXPECT(ledger[b].offset_B == 128 && ledger[a].is_evicted() && ledger.check().empty());
  const std::vector<ValueId> made_from_x = ledger.dependents(x);
  EXPECT((made_from_x == std::vector<ValueId>{b, a}));  // what is resident first
}

}  // namespace

int main() {
  what_is_needed_stays();
  one_needed_output_keeps_its_call();
  slots_are_used_again_and_serials_are_not();
  candidates_are_filed_when_they_become_evictable();
  a_view_goes_and_costs_with_its_root();
  what_is_written_over_can_be_made_again();
  return TEST_RESULT;
}
