#include "stream_order.hpp"

namespace lowtide::shim {

// From the second stream on there are marks: the first one may have used anything.
void StreamOrder::see(Stream stream) {
  if (is_shared_ || (is_used_ && stream == sole_)) return;
  if (!is_used_) {
    is_used_ = true;
    sole_ = stream;
    return;
  }
  is_shared_ = true;
  set(0, capacity_B_, sole_);
}

void StreamOrder::clear(Bytes lo_B, Bytes hi_B) {
  auto it = marks_.upper_bound(lo_B);
  if (it != marks_.begin()) --it;
  while (it != marks_.end() && it->first < hi_B) {
    const Bytes from_B = it->first;
    const Mark mark = it->second;
    if (mark.hi_B <= lo_B) {
      ++it;
      continue;
    }
    it = marks_.erase(it);
    if (from_B < lo_B) marks_.emplace(from_B, Mark{lo_B, mark.stream, mark.count});
    if (mark.hi_B > hi_B) it = marks_.emplace(hi_B, Mark{mark.hi_B, mark.stream, mark.count}).first;
  }
}

void StreamOrder::set(Bytes lo_B, Bytes hi_B, Stream stream) {
  clear(lo_B, hi_B);
  const std::int64_t count = ++counts_[stream];
  auto it = marks_.emplace(lo_B, Mark{hi_B, stream, count}).first;
  const auto next = std::next(it);
  if (next != marks_.end() && next->first == hi_B && next->second.stream == stream) {
    it->second.hi_B = next->second.hi_B;
    marks_.erase(next);
  }
  if (it == marks_.begin()) return;
  const auto previous = std::prev(it);
  if (previous->second.hi_B == lo_B && previous->second.stream == stream) {
    previous->second.hi_B = it->second.hi_B;
    previous->second.count = count;
    marks_.erase(it);
  }
}

void StreamOrder::left(Bytes lo_B, Bytes hi_B, Stream stream) {
  see(stream);
  if (is_shared_) set(lo_B, hi_B, stream);
}

void StreamOrder::taken(Bytes lo_B, Bytes hi_B, Stream stream) {
  see(stream);
  if (!is_shared_) return;
  auto it = marks_.upper_bound(lo_B);
  if (it != marks_.begin()) --it;
  for (; it != marks_.end() && it->first < hi_B; ++it) {
    const Mark& mark = it->second;
    if (mark.hi_B <= lo_B || mark.stream == stream) continue;
    std::int64_t& seen = waited_[{stream, mark.stream}];
    if (mark.count <= seen) continue;
    events_.order(stream, mark.stream);
    seen = counts_[mark.stream];
    ++waits_;
  }
  clear(lo_B, hi_B);
}

}  // namespace lowtide::shim
