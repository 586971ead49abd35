// One engine, many threads: books under one lock, kernels and recomputations without it; nothing is lost, torn or
// stuck.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "eager/eviction_manager.hpp"
#include "eager/policies/families.hpp"
#include "expect.hpp"
#include "random.hpp"

using lowtide::Bytes;
using lowtide::Random;
using namespace lowtide::eager;

namespace {

constexpr Bytes CAPACITY_B = 1 << 15;
constexpr Bytes SIZE_B = 512;
constexpr int THREADS = 3;
constexpr std::size_t LONGEST = 90;  // more than fit: threads may run one after the other
#ifdef LOWTIDE_CHECK
constexpr int TURNS = 400;
#else
constexpr int TURNS = 4000;
#endif

// A value's content is its own number, in memory that threads read and write without the lock, as kernels do.
struct House final : Executor {
  House() : policy(make_dtr_classes({})), manager(ledger, capacity, *policy, *this) {}

  void release(ValueId id) override { capacity.free(ledger[id].offset_B, ledger[id].size_B); }
  void forget_value(ValueId) override { ++forgotten; }

  std::mutex mutex;
  Ledger ledger;
  Addresses capacity{CAPACITY_B, 64, 0};
  std::unique_ptr<Policy> policy;
  EvictionManager manager;
  std::vector<std::int64_t> memory = std::vector<std::int64_t>(CAPACITY_B / 8);
  std::atomic<int> torn{0}, refused{0};
  int forgotten = 0;
};

class Worker {
 public:
  Worker(House& house, int number) : house_(house), recovery_(house.manager), dice_(static_cast<std::uint64_t>(number)) {}

  void work() {
    {
      const std::lock_guard<std::mutex> guard(house_.mutex);
      const Bytes offset_B = house_.manager.allocate(SIZE_B, NO_TAG, 0);
      chain_.push_back({house_.ledger.leaf(SIZE_B, offset_B), 0});
      write(offset_B, 0);
    }
    for (int turn = 0; turn < TURNS; ++turn) {
      if (chain_.size() > LONGEST) {
        const std::lock_guard<std::mutex> guard(house_.mutex);
        for (std::size_t i = chain_.size(); i-- > 1;) house_.manager.died(chain_[i].id);
        chain_.resize(1);
      }
      step(static_cast<std::size_t>(dice_.below(static_cast<Index>(chain_.size()))));
    }
    const std::lock_guard<std::mutex> guard(house_.mutex);
    for (std::size_t i = chain_.size(); i-- > 0;) house_.manager.died(chain_[i].id);
  }

 private:
  struct Known {
    ValueId id;
    std::int64_t content;
  };

  // Makes a value whose content is one more than its input's.
  void step(std::size_t from) {
    std::unique_lock<std::mutex> lock(house_.mutex);
    const Slice<ValueId> input(&chain_[from].id, 1);
    if (!house_.manager.enter(0, input) && !recover(lock, input)) return;
    const Bytes in_B = house_.ledger[chain_[from].id].offset_B;
    const Bytes out_B = house_.manager.allocate(SIZE_B, NO_TAG, 10);
    if (out_B != NOWHERE) {
      lock.unlock();
      if (read(in_B) != chain_[from].content) ++house_.torn;
      write(out_B, chain_[from].content + 1);
      lock.lock();
      const Made made{SIZE_B};
      CallSpec spec;
      spec.cost_ns = 10;
      spec.inputs = input;
      spec.outputs = {&made, 1};
      const CallId call = house_.manager.record(spec, {&out_B, 1});
      const ValueId value = house_.ledger.call(call).outputs[0].value;
      house_.capacity.set_tag(out_B, tag_of(value));
      house_.manager.leave(input);
      chain_.push_back({value, chain_[from].content + 1});
    } else {
      ++house_.refused;
      house_.manager.leave(input);
    }
    EXPECT(house_.ledger.check().empty());
  }

  bool recover(std::unique_lock<std::mutex>& lock, Slice<ValueId> wanted) {
    recovery_.begin(wanted);
    while (const Job job = recovery_.next()) {
      const ValueId source = house_.ledger.call(job.call).inputs[0].value;
      const Bytes in_B = house_.ledger[source].offset_B;
      const Bytes out_B = house_.manager.allocate(SIZE_B, NO_TAG, 10);
      if (out_B == NOWHERE) {
        recovery_.abandon();
        ++house_.refused;
        return false;
      }
      lock.unlock();
      write(out_B, read(in_B) + 1);
      lock.lock();
      if (!recovery_.keeps(0)) {
        house_.capacity.free(out_B, SIZE_B);
      } else {
        house_.capacity.set_tag(out_B, tag_of(house_.ledger.call(job.call).outputs[0].value));
      }
      recovery_.done({&out_B, 1});
    }
    return true;
  }

  void write(Bytes offset_B, std::int64_t content) {
    for (Bytes b = 0; b < SIZE_B; b += 8) house_.memory[static_cast<std::size_t>((offset_B + b) / 8)] = content;
  }
  std::int64_t read(Bytes offset_B) {
    const std::int64_t content = house_.memory[static_cast<std::size_t>(offset_B / 8)];
    for (Bytes b = 0; b < SIZE_B; b += 8)
      if (house_.memory[static_cast<std::size_t>((offset_B + b) / 8)] != content) ++house_.torn;
    return content;
  }

  House& house_;
  Recovery recovery_;
  Random dice_;
  std::vector<Known> chain_;
};

}  // namespace

int main() {
  House house;
  std::vector<std::thread> threads;
  for (int i = 0; i < THREADS; ++i) threads.emplace_back([&house, i] { Worker(house, i).work(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT(house.torn == 0 && house.ledger.values() == 0 && house.ledger.calls() == 0 && house.capacity.in_use_B() == 0);
  EXPECT(house.manager.statistics().evictions > 0 && house.manager.statistics().recomputations > 0 && house.forgotten > 0);
  return TEST_RESULT;
}
