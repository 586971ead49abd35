// TorchMemory: what storages and Python ask of torch's allocator for the memory that this module serves.
//
// A module serves one kind of memory: allocator.cpp defines these functions for the CPU's, cuda/tenant.cpp for a GPU's.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

#include "slab.hpp"

namespace lowtide::shim {

// The kind of memory, in words for messages too: "CPU".
c10::DeviceType device_type();
const char* device_words();
// What a storage grows by from now on.
c10::Allocator* torch_allocator();

// A block for a storage, as torch would ask for one. Throws c10::OutOfMemoryError.
c10::DataPtr allocate(std::size_t size);
// The same from the stock allocator of that device, whoever is engaged.
c10::DataPtr allocate_outside(std::size_t size, c10::Device device);
// A fresh block of a slab, or null: it does not fit there.
void* take_place(Slab& slab, Bytes where_B, Bytes size_B);
// Memory of a slab as torch holds it; `p` is a fresh block of size_B.
c10::DataPtr adopt(void* p, Bytes size_B);
// Whether the deleter is this allocator's or the stock one's: then the bytes are nobody else's.
bool is_plain(const c10::DataPtr& data);
// Copies bytes between two blocks that do not overlap, when everything that was issued has used them.
void copy_bytes(void* to, const void* from, std::size_t size);

}  // namespace lowtide::shim
