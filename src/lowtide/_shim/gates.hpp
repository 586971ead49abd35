// Gates: the functions of the shim that another compiled module calls, as addresses.
//
// The slabs, who owns which, and torch's allocator are one per process: they belong to the shim. A module that builds
// on them (eager/) is compiled with the arena and with what of a slab touches nothing else, takes a slab's address from
// Python, and reaches everything else through this table. Both are compiled from the same sources or not at all.
#pragma once
#include <Python.h>

#include <string>

#include "surgery.hpp"

namespace lowtide::shim {

struct Gates {
  Slab* (*slab_of)(PyObject* object);
  bool (*engages_here)(const Slab& slab);  // whether the slab serves this thread now
  void (*drop)(Storage& storage, const std::string& message, Slab& slab, std::uint64_t value);
  void (*restore)(Storage& storage, c10::DataPtr block);
  void (*steal)(Storage& target, Storage& source);
  void (*move_into)(Storage& storage, c10::DataPtr block);
  void (*rebase)(Storage& storage, void* p);
  bool (*is_dropped)(const Storage& storage);
  std::string (*objection)(const Storage& storage);
  // A block as torch holds it; empty where it does not fit. Under no pressure.
  c10::DataPtr (*block)(Slab& slab, Bytes size_B);
  c10::DataPtr (*zone)(Slab& slab, Bytes size_B);
  c10::DataPtr (*outside)(std::size_t size_B);
  // A block of the slab that no storage holds any more, for a new one.
  c10::DataPtr (*adopt)(void* p, Bytes size_B);
  void (*set_place)(Slab& slab, Bytes persistent_B);
  void (*suspend)();  // until resume(), nothing serves this thread but the stock allocator
  void (*resume)();
};

const Gates& gates();
constexpr const char* GATES = "lowtide.shim.gates";  // the capsule's name

}  // namespace lowtide::shim
