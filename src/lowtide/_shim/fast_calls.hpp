// FastCalls: the functions that generated code calls once per statement or segment, without pybind11's argument tuple.
//
//   engage(arena) disengage(arena)    which arena serves this thread
//   enter(table) leave()              which segment runs; leave returns the hits of its planned places
//   at(i)                             statement i comes next
// They hold the interpreter lock throughout and allocate nothing. Python.h alone: pybind11 costs seconds of compilation.
#pragma once
#include <Python.h>

#include <memory>

#include "slab.hpp"
#include "table.hpp"

namespace lowtide::shim {

// is_in_force: whether torch asks this module's allocator; without it nothing is engaged. False, with Python's error
// set, if it fails.
bool add_fast_calls(PyObject* module, bool (*is_in_force)());

// What a Python object holds; std::invalid_argument if it holds something else. Defined in bind_slabs.cpp.
Slab* slab_of(PyObject* object);
std::shared_ptr<const Table> table_of(PyObject* object);

}  // namespace lowtide::shim
