// EXPECT: a test's claim; a false one says where, and makes the program exit with 1 at the end.
#pragma once
#include <cstdio>

namespace expect {
inline int failures = 0;
inline void that(bool holds, const char* claim, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, claim);
}
}  // namespace expect

#define EXPECT(claim) expect::that(static_cast<bool>(claim), #claim, __FILE__, __LINE__)
#define TEST_RESULT (expect::failures == 0 ? 0 : 1)
