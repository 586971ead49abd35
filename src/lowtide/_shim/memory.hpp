// Memory: where the bytes of a slab come from. A slab does its books elsewhere and never touches the bytes itself.
#pragma once
#include <cstddef>

namespace lowtide::shim {

class Memory {
 public:
  virtual ~Memory() = default;
  // Sizes are whole units: a power of two, and at least the alignment of what is reserved.
  virtual std::size_t unit() const = 0;
  // Throws std::system_error or std::runtime_error.
  virtual char* reserve(std::size_t size) = 0;
  virtual void give_back(char* base, std::size_t size) noexcept = 0;
  // Whole units in use by nobody; whether the system has them again until they are next used.
  virtual bool trim(char* from, std::size_t size) noexcept = 0;
};

// Private pages of this process, reserved and touched as they are used. Never destroyed.
Memory& host_memory();

}  // namespace lowtide::shim
