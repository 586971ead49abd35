// What Python is offered of storages by every module: see surgery.hpp. Conversions only.
#pragma once
#include <pybind11/pybind11.h>

#include "surgery.hpp"

namespace lowtide::shim {

// Storages come from Python by their address.
inline Storage& storage_at(std::uintptr_t address) { return *reinterpret_cast<Storage*>(address); }

void add_storages(pybind11::module_& m);

}  // namespace lowtide::shim
