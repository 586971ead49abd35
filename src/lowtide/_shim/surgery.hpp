// Surgery on storages: their bytes are dropped, restored, taken over or moved, under everything that sees them.
//
// A storage keeps its size, strides and views while its bytes are gone; so every tensor, view and saved tensor sees
// what happens, and no version counter changes. A DROPPED storage holds no memory; every access through torch raises
// the message it was dropped with. That guard is what makes a null pointer safe.
// ONLY plain storages are touched: CPU bytes of torch's own allocator, known size, owned by the storage alone. Memory
// shared with another process, with numpy, copy-on-write or made by somebody else is refused (std::invalid_argument),
// and the storage is unchanged.
// VALUES. In a slab that keeps values a block's number goes with the bytes that a storage is moved to, and is taken off
// before the storage's bytes are dropped or stolen: that is no death. The death of a dropped storage is reported to
// the slab that drop() was told of, with that value's number.
// THREADS: the caller sees to it that nobody uses the storage meanwhile, kernels included.
#pragma once
#include <c10/core/StorageImpl.h>

#include <string>

#include "slab.hpp"

namespace lowtide::shim {

using Storage = c10::StorageImpl;

void drop(Storage& storage, const std::string& message);
void drop(Storage& storage, const std::string& message, Slab& slab, std::uint64_t value);
void steal(Storage& target, Storage& source);  // source is left dropped
// `block` is a fresh one of nbytes whose content is undefined.
void restore(Storage& storage, c10::DataPtr block);
bool is_dropped(const Storage& storage);
// Gives size_B bytes to a storage that has none.
void fill(Storage& storage, c10::DataPtr block, Bytes size_B);

// Why a storage's bytes may not be touched, or an empty text.
std::string objection(const Storage& storage);

// Copies the bytes into `block`, a fresh block of nbytes, and releases the old ones.
void move_into(Storage& storage, c10::DataPtr block);
// Says that the bytes lie at p now, in the same slab: somebody has slid the block.
void rebase(Storage& storage, void* p);

}  // namespace lowtide::shim
