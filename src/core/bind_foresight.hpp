// Adds rehearsals, and what they foresee, to the module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_foresight(nanobind::module_& m);

}  // namespace lowtide
