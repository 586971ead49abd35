#include "gates.hpp"

#include "allocator.hpp"
#include "fast_calls.hpp"
#include "thread.hpp"

namespace lowtide::shim {

namespace {

c10::DataPtr held(void* p, Bytes size_B) { return p == nullptr ? c10::DataPtr() : adopt(p, size_B); }

}  // namespace

const Gates& gates() {
  static const Gates table{
      &slab_of,
      [](const Slab& slab) { return Thread::mine().slab() == &slab; },
      static_cast<void (*)(Storage&, const std::string&, Slab&, std::uint64_t)>(&drop),
      &restore,
      &steal,
      &move_into,
      &rebase,
      &is_dropped,
      &objection,
      [](Slab& slab, Bytes size_B) { return held(slab.serve_quietly(size_B), size_B); },
      [](Slab& slab, Bytes size_B) { return held(slab.serve_persistent(size_B), size_B); },
      [](std::size_t size_B) { return allocate_outside(size_B, c10::Device(c10::DeviceType::CPU)); },
      &adopt,
      [](Slab& slab, Bytes persistent_B) { slab.set_place(persistent_B); },
      [] { Thread::mine().suspend(); },
      [] { Thread::mine().resume(); },
  };
  return table;
}

}  // namespace lowtide::shim
