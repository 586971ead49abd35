// Random tapes: programs of leaves, calls, views, mutations and deaths, as the words that a Tape reads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "eager/tape.hpp"
#include "random.hpp"

namespace tapes {

using lowtide::Bytes;
using lowtide::Index;
using lowtide::Random;

// What a program is made of: shares of a hundred events.
struct Mix {
  int events = 120;
  Bytes largest_B = 4096;
  int deaths = 30, leaves = 5;            // the rest are calls
  int views = 15, mutations = 20, twins = 20;  // of calls: make a view, write over an input, make two outputs
};

struct Program {
  std::vector<std::int64_t> words, kept;
  Bytes total_B = 0;  // of all contents
};

class Writer {
 public:
  Writer(std::uint64_t seed, Mix mix) : dice_(seed), mix_(mix) {}

  Program write() {
    leaf();
    for (int i = 0; i < mix_.events; ++i) {
      const int roll = dice_.below(100);
      if (roll < mix_.leaves)
        leaf();
      else if (roll < mix_.leaves + mix_.deaths && roots_.size() > 2)
        die();
      else
        call();
    }
    for (Content& c : roots_)
      if (dice_.below(2) == 0) program_.kept.push_back(c.number);
    return program_;
  }

 private:
  struct Content {
    std::int64_t number;
    Bytes size_B;
    std::vector<std::int64_t> views;
  };

  Bytes size_B() { return dice_.below(10) == 0 ? 0 : 1 + dice_.below(static_cast<Index>(mix_.largest_B)); }
  Content& any() { return roots_[static_cast<std::size_t>(dice_.below(static_cast<Index>(roots_.size())))]; }
  void put(std::initializer_list<std::int64_t> words) { program_.words.insert(program_.words.end(), words); }

  void add(Bytes size_B) {
    roots_.push_back({next_++, size_B, {}});
    program_.total_B += size_B;
  }

  void leaf() {
    const Bytes size = size_B();
    put({0, size});
    add(size);
  }

  void die() {
    const auto chosen = roots_.begin() + dice_.below(static_cast<Index>(roots_.size()));
    put({2, chosen->number});
    roots_.erase(chosen);
  }

  void call() {
    std::vector<std::int64_t> inputs;
    const int wanted = 1 + dice_.below(3);
    for (int i = 0; i < wanted; ++i) {
      const Content& c = any();
      const bool view = !c.views.empty() && dice_.below(2) == 0;
      inputs.push_back(view ? c.views.back() : c.number);
    }
    const int kind = dice_.below(100);
    const std::int64_t cost_ns = dice_.below(1000), name = dice_.below(5);
    if (kind < mix_.mutations) {
      Content& c = any();
      inputs.push_back(c.number);
      put({1, name, cost_ns, static_cast<std::int64_t>(inputs.size()), 1, 0, 1, 0});
      for (std::int64_t number : inputs) put({number});
      put({c.size_B, static_cast<std::int64_t>(inputs.size()) - 1, 0});
      c = {next_++, c.size_B, {}};
      return;
    }
    const bool makes_view = kind < mix_.mutations + mix_.views, twins = kind >= 100 - mix_.twins;
    std::vector<Bytes> sizes_B{makes_view ? 0 : size_B()};
    if (twins) sizes_B.push_back(size_B());
    put({1, name, cost_ns, static_cast<std::int64_t>(inputs.size()), static_cast<std::int64_t>(sizes_B.size()), makes_view, 0,
         0});
    for (std::int64_t number : inputs) put({number});
    for (Bytes size : sizes_B) put({size});
    if (!makes_view) {
      for (Bytes size : sizes_B) add(size);
      return;
    }
    // A view of the first input's content.
    put({0, inputs[0]});
    for (Content& c : roots_)
      if (c.number == inputs[0] || std::count(c.views.begin(), c.views.end(), inputs[0]) > 0) c.views.push_back(next_);
    ++next_;
    if (twins) add(sizes_B[1]);
  }

  Random dice_;
  Mix mix_;
  Program program_;
  std::vector<Content> roots_;  // alive
  std::int64_t next_ = 1;
};

inline Program random_program(std::uint64_t seed, Mix mix = {}) { return Writer(seed, mix).write(); }

}  // namespace tapes
