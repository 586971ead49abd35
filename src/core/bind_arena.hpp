// The arena's part of the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_arena(nanobind::module_& m);

}  // namespace lowtide
