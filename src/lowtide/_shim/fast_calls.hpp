// FastCalls: the functions that generated code calls once per statement or segment, without pybind11's argument tuple.
//
//   engage(arena) disengage(arena)    which arena serves this thread
//   enter(table) leave()         which segment runs; leave returns the hits of its planned places
//   at(i)                        statement i comes next
// They hold the interpreter lock throughout and allocate nothing.
#pragma once
#include <pybind11/pybind11.h>

namespace lowtide::shim {

void add_fast_calls(pybind11::module_& module);

}  // namespace lowtide::shim
