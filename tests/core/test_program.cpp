#include "expect.hpp"
#include "programs.hpp"

using namespace lowtide;

int main() {
  const Program chain = programs::chain(3);
  EXPECT(chain.is_valid());
  EXPECT(chain.stage_count() == 9);
  // The input is read by f1 and by the last backward: three gaps.
  EXPECT(chain.uses[0].size() == 2);
  EXPECT(chain.gap_start(0) == 0 && chain.gap_end(0) == 1);
  EXPECT(chain.gap_start(1) == 1 && chain.gap_end(1) == 7);
  EXPECT(chain.gap_start(2) == 7 && chain.gap_end(2) == 8);
  EXPECT(chain.gap_at(0, 1) == 0 && chain.gap_at(0, 2) == 1 && chain.gap_at(0, 8) == 2);
  EXPECT(!chain.is_free(0));                   // cannot be recomputed
  EXPECT(chain.is_free(chain.first_gap(1)));

  Program broken = chain;
  broken.size.push_back(1);
  EXPECT(!broken.is_valid());
  broken = chain;
  broken.reads.item[0] = 5;                    // reads what is not there yet
  EXPECT(!broken.is_valid());
  broken = chain;
  broken.outputs.item[1] = 0;                  // two producers
  EXPECT(!broken.is_valid());
  broken = chain;
  broken.reads.begin[1] = 7;
  EXPECT(!broken.is_valid());
  broken = programs::random(1, 20);
  broken.takeover_peak[1] = broken.trace_peak[1] + 1;  // takes more in place
  EXPECT(!broken.is_valid());
  broken = chain;
  broken.takeovers.begin = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1};
  broken.takeovers.item = {3};                 // overwrites what it does not read
  EXPECT(!broken.is_valid());
  for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT(programs::random(seed, 20).is_valid());
  return TEST_RESULT;
}
