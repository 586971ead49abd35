// Adds the chain table to the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_chain(nanobind::module_& m);

}  // namespace lowtide
