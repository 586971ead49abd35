// Adds the eager engine's replay to the module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_eager(nanobind::module_& m);

}  // namespace lowtide
