// What the module of every kind of memory shows of its slabs and tables: conversions only.
//
// The types belong to the module that adds them, so two modules of one process may both have theirs.
#pragma once
#include <pybind11/pybind11.h>

#include "handle.hpp"

namespace lowtide::shim {

// C++ exceptions of torch become Python's as torch itself makes them.
void add_errors();
// Table, and Slab without a constructor.
pybind11::class_<Handle> add_slabs(pybind11::module_& m);
// The log of this module's own allocations and releases.
void add_log(pybind11::module_& m);

}  // namespace lowtide::shim
