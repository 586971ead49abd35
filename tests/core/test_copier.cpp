#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <vector>

#include "copier.hpp"
#include "expect.hpp"
#include "random.hpp"

using namespace lowtide;

namespace {

using Bytes8 = std::vector<std::uint8_t>;

Bytes8 noise(std::size_t count, std::uint64_t seed) {
  Random dice(seed);
  Bytes8 found(count);
  for (std::uint8_t& byte : found) byte = static_cast<std::uint8_t>(dice.below(256));
  return found;
}

bool happens(const EventRef& event) { return event->wait_for(std::chrono::seconds(20)); }

void jobs_copy_in_order() {
  Copier copier;
  const Bytes8 first = noise(3'000'001, 1);
  Bytes8 middle(first.size()), last(first.size());
  copier.submit(middle.data(), first.data(), first.size(), {});
  const EventRef done = copier.submit(last.data(), middle.data(), middle.size(), {});
  EXPECT(happens(done));
  EXPECT(last == first);
  copier.drain();
  EXPECT(copier.idle());
  EXPECT(copier.traffic().jobs == 2);
  EXPECT(copier.traffic().bytes == 6'000'002);
}

void one_engine_waits_for_another() {
  Copier there, back;
  const EventRef gate = std::make_shared<Event>();
  const Bytes8 source = noise(4096, 2);
  Bytes8 host(source.size()), target(source.size());
  const EventRef sent = there.submit(host.data(), source.data(), source.size(), {gate});
  const EventRef came = back.submit(target.data(), host.data(), host.size(), {sent});
  EXPECT(!came->wait_for(std::chrono::milliseconds(10)));
  EXPECT(!there.idle());
  gate->set();
  EXPECT(happens(came));
  EXPECT(target == source);
}

void a_link_is_no_faster_than_its_rate() {
  Copier copier(100e6, 1e-3);
  const Bytes8 source = noise(2'000'000, 3);
  Bytes8 target(source.size());
  const Clock::time_point start = Clock::now();
  EXPECT(happens(copier.submit(target.data(), source.data(), source.size(), {})));
  const double time_s = std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT(time_s > 0.020);  // 1 ms and 2 MB at 100 MB/s, less what a sleep may be too short
  copier.drain();
  EXPECT(copier.traffic().busy_s > 0.020);
  EXPECT(target == source);
}

void a_stopped_engine_gives_up_and_begins_anew() {
  Copier copier(1e6);
  const EventRef never = std::make_shared<Event>();
  Bytes8 source(4'000'000), target(source.size());
  copier.submit(target.data(), source.data(), source.size(), {});  // four seconds, were it not stopped
  const EventRef waiting = copier.submit(target.data(), source.data(), 1, {never});
  copier.stop();
  EXPECT(copier.idle());
  EXPECT(!waiting->is_set());
  EXPECT(happens(copier.submit(target.data(), source.data(), 1, {})));
}

void an_engine_that_waits_can_be_stopped() {
  Copier copier;
  std::uint8_t byte = 0;
  copier.submit(&byte, &byte, 0, {std::make_shared<Event>()});
  copier.stop();
  EXPECT(copier.idle());
}

void senseless_links_are_refused() {
  for (const double rate : {-1.0, 1.0 / 0.0}) {
    bool refused = false;
    try {
      const Copier copier(rate);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    EXPECT(refused);
  }
}

#ifndef __SANITIZE_THREAD__
void a_forked_child_begins_anew() {
  Copier copier(1e6);
  Bytes8 source(100'000, 7), target(source.size());
  const EventRef parents = copier.submit(target.data(), source.data(), source.size(), {});
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      parents->wait_for(std::chrono::milliseconds(1));
    } catch (const std::runtime_error&) {
      refused = true;
    }
    std::uint8_t from = 5, to = 0;
    const bool works = copier.idle() && happens(copier.submit(&to, &from, 1, {})) && to == 5;
    copier.stop();
    _exit(refused && works ? 0 : 1);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  EXPECT(happens(parents));
  EXPECT(target == source);
}
#endif

}  // namespace

int main() {
  jobs_copy_in_order();
  one_engine_waits_for_another();
  a_link_is_no_faster_than_its_rate();
  a_stopped_engine_gives_up_and_begins_anew();
  an_engine_that_waits_can_be_stopped();
  senseless_links_are_refused();
#ifndef __SANITIZE_THREAD__
  a_forked_child_begins_anew();
#endif
  return TEST_RESULT;
}
