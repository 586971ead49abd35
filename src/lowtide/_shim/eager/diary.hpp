// Diary: what the program does, value by value, for an execution trace. eager_engine/recorder.py writes
// that, and its methods say what each entry means. Values are named by their serials.
#pragma once
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "eager/ids.hpp"

namespace lowtide::shim {

class Diary {
 public:
  using Serials = std::vector<std::int64_t>;
  using Made = std::vector<std::pair<std::int64_t, Bytes>>;
  using Consumed = std::vector<std::pair<eager::Index, eager::Index>>;
  // What happened ("leaf", "call", "wrote", "kept", "died" or "settle"), the operator, what it was given, what it made or
  // wrote, which of these it wrote over what, and its cost.
  using Entry = std::tuple<const char*, std::string, Serials, Made, Consumed, eager::Nanoseconds>;

  explicit Diary(bool on) : on_(on) {}
  bool is_on() const { return on_; }
  void note(const char* what, std::string name = {}, Serials inputs = {}, Made made = {}, Consumed consumed = {},
            eager::Nanoseconds cost_ns = 0) {
    if (on_) entries_.emplace_back(what, std::move(name), std::move(inputs), std::move(made), std::move(consumed), cost_ns);
  }
  std::vector<Entry> take() { return std::exchange(entries_, {}); }

 private:
  const bool on_;
  std::vector<Entry> entries_;
};

}  // namespace lowtide::shim
