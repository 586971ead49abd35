// Adds copy engines and their events to the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_copier(nanobind::module_& m);

}  // namespace lowtide
