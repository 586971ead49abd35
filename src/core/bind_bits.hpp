// Adds packed answers and packed pooling to the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace lowtide {

void bind_bits(nanobind::module_& m);

}  // namespace lowtide
