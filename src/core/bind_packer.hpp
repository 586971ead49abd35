// Adds the packer's classes and functions to the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_packer(nanobind::module_& m);

}  // namespace lowtide
