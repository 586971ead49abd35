// StreamOrder: whose work may still be using a hole, and what another stream has to wait for before it uses it.
//
// A block is released while the kernels that use it are still to run. On its own stream the next user comes after them
// by itself; a user on another stream has to be told to wait. So every byte that is in no block is marked with the
// stream that released it and with that stream's count of releases then. Who takes marked bytes on another stream waits
// for all that the marked stream has been given so far, unless it has done so since that count.
// INVARIANT: marks are disjoint, sorted by address, and never empty; bytes that were never used have none; while one
// stream alone has used the range there are none either, and `sole` is that stream.
// Waits are made by the device: no thread waits. Not thread-safe: the device's mutex is held.
#pragma once
#include <map>
#include <utility>

#include "bytes.hpp"
#include "events.hpp"

namespace lowtide::shim {

class StreamOrder {
 public:
  StreamOrder(Bytes capacity_B, Events& events) : capacity_B_(capacity_B), events_(events) {}

  // The bytes [lo_B, hi_B) were in a block of `stream` and are in none now.
  void left(Bytes lo_B, Bytes hi_B, Stream stream);
  // They are in a block of `stream` now.
  void taken(Bytes lo_B, Bytes hi_B, Stream stream);

  std::int64_t waits() const { return waits_; }  // that streams were told to make
  std::size_t marks() const { return marks_.size(); }
  bool has_others(Stream stream) const { return is_shared_ || (is_used_ && sole_ != stream); }

 private:
  struct Mark {
    Bytes hi_B;
    Stream stream;
    std::int64_t count;
  };

  void see(Stream stream);
  void clear(Bytes lo_B, Bytes hi_B);
  void set(Bytes lo_B, Bytes hi_B, Stream stream);

  const Bytes capacity_B_;
  Events& events_;
  bool is_used_ = false, is_shared_ = false;
  Stream sole_ = nullptr;
  std::map<Bytes, Mark> marks_;  // by their first byte
  std::map<Stream, std::int64_t> counts_;
  std::map<std::pair<Stream, Stream>, std::int64_t> waited_;  // (later, earlier) -> count
  std::int64_t waits_ = 0;
};

}  // namespace lowtide::shim
