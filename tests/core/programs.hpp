// Programs to plan: a chain with its backward, and random ones.
#pragma once
#include <algorithm>
#include <vector>

#include "program.hpp"
#include "random.hpp"

namespace programs {

using lowtide::Index;
using lowtide::Program;

struct Builder {
  Program program;
  Index opened = 0;  // the first stage of the segment that stages are added to

  // Adds a stage and returns its first value.
  Index stage(const std::vector<lowtide::Bytes>& sizes, const std::vector<Index>& reads, lowtide::Picos time,
              bool rerunnable = true, lowtide::Bytes workspace = 0) {
    std::vector<Index> outputs;
    lowtide::Bytes total = workspace;
    for (lowtide::Bytes size : sizes) {
      outputs.push_back(static_cast<Index>(program.size.size()));
      program.size.push_back(size);
      program.pinned_from.push_back(lowtide::NEVER);
      program.lost_from.push_back(lowtide::NEVER);
      program.fetch_B.push_back(-1);
      program.send_B.push_back(0);
      total += size;
    }
    program.outputs.push_row(outputs);
    program.reads.push_row(reads);
    program.run_time.push_back(time);
    program.recompute_time.push_back(time);
    program.trace_peak.push_back(total);
    program.recompute_peak.push_back(total);
    program.recompute_through.push_back(rerunnable ? lowtide::NEVER : -1);
    program.part.push_back(0);
    program.takeovers.push_row({});
    program.takeover_peak.push_back(0);
    program.opened.push_back(opened);
    return outputs.empty() ? -1 : outputs[0];
  }

  // Lets runs of the last stage overwrite some of what it reads with its first output.
  void takes(const std::vector<Index>& values) {
    const Index heir = program.outputs[program.outputs.size() - 1][0];
    program.takeovers.begin.pop_back();
    program.takeovers.push_row(values);
    program.takeover_peak.back() = program.trace_peak.back() - program.size[static_cast<std::size_t>(heir)];
  }

  Program finish() {
    program.index();
    return program;
  }
};

// x0 -> f1 -> ... -> fn -> loss, then backwards; the backward of f reads its input. The input cannot be recomputed.
inline Program chain(int length, lowtide::Bytes size = 100) {
  Builder b;
  std::vector<Index> x{b.stage({size}, {}, 0, false)};
  for (int k = 0; k < length; ++k) x.push_back(b.stage({size}, {x.back()}, 10));
  Index gradient = b.stage({size}, {x.back()}, 10);
  for (int k = length; k > 0; --k) gradient = b.stage({size}, {gradient, x[static_cast<std::size_t>(k - 1)]}, 20);
  b.stage({}, {gradient}, 0, false);
  return b.finish();
}

// Without `in_place` no run overwrites anything; with `fetches` most values can come from elsewhere.
inline Program random(std::uint64_t seed, int stages, bool in_place = true, bool fetches = false) {
  lowtide::Random dice(seed);
  Builder b;
  std::vector<Index> there{b.stage({64, 32}, {}, 0, false)};
  there.push_back(1);
  for (int t = 0; t < stages; ++t) {
    if (t == stages / 2) b.opened = b.program.stage_count();
    std::vector<Index> reads;
    for (Index i = dice.below(3) + 1; i > 0; --i) {
      const Index v = there[static_cast<std::size_t>(dice.below(static_cast<Index>(there.size())))];
      if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
    }
    std::vector<lowtide::Bytes> sizes;
    for (Index i = dice.below(3) + 1; i > 0; --i) sizes.push_back(dice.below(100));
    Index v = b.stage(sizes, reads, 1 + dice.below(50), dice.below(8) != 0, dice.below(2) * dice.below(50));
    if (in_place && dice.below(2) == 0) b.takes({reads.back()});
    for (std::size_t i = 0; i < sizes.size(); ++i) there.push_back(v++);
  }
  std::vector<Index> handed{there.back()};
  b.program.pinned_from[static_cast<std::size_t>(there.back())] = b.program.stage_count() / 2;
  b.stage({}, handed, 0, false);
  for (std::size_t v = 0; fetches && v < b.program.size.size(); ++v) {
    if (dice.below(4) == 0) continue;
    b.program.fetch_B[v] = b.program.size[v];
    b.program.send_B[v] = v == 0 ? 0 : b.program.size[v];
  }
  b.program.send_price = b.program.fetch_price = 0.3;
  return b.finish();
}

}  // namespace programs
