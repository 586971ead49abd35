// Units: sizes as people read them.
#pragma once
#include <array>
#include <cstdio>
#include <string>

#include "bytes.hpp"

namespace lowtide::shim {

// "1.50 MiB": three digits at most, whole bytes as they are.
inline std::string in_units(Bytes size_B) {
  const std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(size_B);
  std::size_t unit = 0;
  while (size >= 1024 && unit + 1 < units.size()) {
    size /= 1024;
    ++unit;
  }
  std::array<char, 48> text{};
  const int decimals = unit == 0 || size >= 100 ? 0 : size < 10 ? 2 : 1;
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, size, units[unit]);
  return text.data();
}

}  // namespace lowtide::shim
