// Work on a range of elements, split over threads that live for one call.
//
// `in_pieces` calls body(first, last) for consecutive pieces of [0, count). Every piece but the last has a multiple of
// `grain` elements, so pieces whose results share a byte only within a grain never write the same byte. The calling
// thread takes the first piece. A machine that refuses a thread gets the piece done by the caller: the result is the same.
#pragma once
#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace lowtide {

using Count = std::int64_t;

// Elements below which a second thread costs more than it saves.
constexpr Count WORTH_A_THREAD = 1 << 16;

template <class Body>
void in_pieces(Count count, Count grain, int threads, const Body& body, Count worth = WORTH_A_THREAD) {
  const Count wanted = std::max<Count>(1, std::min<Count>(threads, count / std::max<Count>(1, worth)));
  const Count grains = (count + grain - 1) / grain;
  const Count size = (grains + wanted - 1) / wanted * grain;
  std::vector<std::thread> others;
  others.reserve(static_cast<std::size_t>(wanted));
  for (Count first = size; first < count; first += size) {
    const Count last = std::min(count, first + size);
    try {
      others.emplace_back([&body, first, last] { body(first, last); });
    } catch (const std::system_error&) {
      body(first, last);
    }
  }
  if (count > 0) body(Count{0}, std::min(count, size));
  for (std::thread& other : others) other.join();
}

}  // namespace lowtide
