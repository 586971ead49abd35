// Ids: how the eager engine names values and calls, and the units it counts in.
//
// An id is a slot of the ledger's tables. Slots are used again, so an id means something only until what it names leaves
// the ledger; the `serial` of a value or of a call is never used again, and is what logs and digests name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bytes.hpp"

namespace lowtide::eager {

using ValueId = std::int32_t;
using CallId = std::int32_t;
using Index = std::int32_t;
using Nanoseconds = std::int64_t;  // _ns in names

constexpr ValueId NO_VALUE = -1;
constexpr CallId NO_CALL = -1;
constexpr Bytes NOWHERE = -1;

// Consecutive items that somebody else owns.
template <class T>
class Slice {
 public:
  Slice() = default;
  Slice(const T* first, std::size_t count) : first_(first), count_(count) {}
  Slice(const std::vector<T>& items) : first_(items.data()), count_(items.size()) {}  // NOLINT: a vector is a slice
  const T* begin() const { return first_; }
  const T* end() const { return first_ + count_; }
  const T& operator[](std::size_t i) const { return first_[i]; }
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  const T* first_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace lowtide::eager
