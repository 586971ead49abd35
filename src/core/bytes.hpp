// Bytes: the unit of every size and every offset in the core.
#pragma once
#include <cstdint>

namespace lowtide {

using Bytes = std::int64_t;

}  // namespace lowtide
