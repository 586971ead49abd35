// Bodies: the storages of values, that is, whose bytes a value has: the storage that the program sees, or one that
// nobody else sees.
//
// A value that is alive has the program's storage, of which only a weak reference is kept, so that its death is the
// program's, and its address is not used again before that is known. A value that is rebuilt though the program has let
// go of it, or whose storage has another content by now, has a private one. A leaf's block is KEPT (slab.hpp): when the
// program releases it, its bytes pass to a private storage, for calls that still read it. A storage that may not lie
// in the arena, which others may write to unseen, has a copy there (`aside`): recomputations read what was there when
// it was read first, and the copy is kept when the program releases it.
// INVARIANT: find() has the present value of every storage that the program sees and that is known.
// THREADS: the caller holds one lock.
#pragma once
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <vector>

#include "eager/ids.hpp"
#include "gates.hpp"

namespace lowtide::shim {

using eager::NO_VALUE;
using eager::ValueId;

struct Body {
  Storage* seen = nullptr;                // the program's; look at it only through hold()
  c10::intrusive_ptr<Storage> own;        // a private one
  c10::intrusive_ptr<Storage> aside;      // in the arena, a copy of one that lies elsewhere
  c10::weak_intrusive_ptr<Storage> weak{c10::intrusive_ptr<Storage>()};  // to it
  std::unique_ptr<char[]> host;           // a copy
  bool fixed = false;                     // somebody has its address: it is neither evicted nor moved
  bool parameter = false, stepped = false;  // stepped: made by an optimizer's step
  // The storage, or null when the program has released it, in whatever thread.
  c10::intrusive_ptr<Storage> hold() const { return own != nullptr ? own : seen != nullptr ? weak.lock() : nullptr; }
};

class Bodies {
 public:
  Bodies(const Gates& gates, Slab& slab) : gates_(gates), slab_(slab) {}

  ValueId find(const Storage* storage) const {
    const auto found = by_storage_.find(storage);
    return found == by_storage_.end() ? NO_VALUE : found->second;
  }
  Body& operator[](ValueId value) {
    if (static_cast<std::size_t>(value) >= bodies_.size()) bodies_.resize(static_cast<std::size_t>(value) + 64);
    return bodies_[static_cast<std::size_t>(value)];
  }
  std::size_t slots() const { return bodies_.size(); }

  // The value is the content of a storage that the program sees. A kept one is a leaf.
  void show(ValueId value, Storage& storage, bool kept);
  // The program's storage of `old` has another content from now on.
  void hand_over(ValueId old, ValueId made);
  // Recomputed bytes: to the program's storage, if there is one, else to a private one.
  Bytes keep(ValueId value, c10::intrusive_ptr<Storage> storage);
  // Bytes of a recovered value that was written over to make another pass to that.
  Bytes pass_on(ValueId old, ValueId made);
  // The program has released it; the block of a kept one is handed to a private storage.
  void died(ValueId value, bool kept, Bytes offset_B, Bytes size_B);
  // The program's storage is its own affair from now on; the value has the copy, if there is one.
  void part(ValueId value, c10::intrusive_ptr<Storage> copy);
  // Frees the bytes.
  void release(ValueId value);
  // It leaves the ledger.
  void forget(ValueId value);
  // Writes the value's number on its block.
  void label(ValueId value, bool kept);
  Bytes offset_of(const Storage& storage) const;  // NOWHERE: not in the slab
  bool is_dropped(const Storage& storage) const { return gates_.is_dropped(storage); }
  // Takes all numbers off, and releases everything: what the program sees is not changed.
  void end();

  // Runs over values whose storages lie elsewhere and died: nobody reports that.
  template <class Visit>
  void visit_expired(const Visit& visit) {
    for (std::size_t i = 0; i < outside_.size();) {
      const ValueId value = outside_[i];
      if (!(*this)[value].weak.expired()) {
        ++i;
        continue;
      }
      outside_.erase(outside_.begin() + static_cast<std::ptrdiff_t>(i));
      visit(value);
    }
  }
  // A storage elsewhere, and a block for the copy of it.
  void show_outside(ValueId value, Storage& storage, c10::intrusive_ptr<Storage> aside);
  // That storage is its own affair from now on; the value has the copy.
  void leave_outside(ValueId value);
  // Whether a storage elsewhere was written since it was copied; O(its bytes).
  bool is_stale(ValueId value);
  void copy_anew(ValueId value);

 private:
  void unsee(ValueId value);

  const Gates& gates_;
  Slab& slab_;
  std::vector<Body> bodies_;  // by value
  ska::flat_hash_map<const Storage*, ValueId> by_storage_;
  std::vector<ValueId> outside_;
};

// Of all its bytes.
std::uint64_t digest_of(const Storage& storage);

// A storage of size_B over a block.
c10::intrusive_ptr<Storage> storage_over(c10::DataPtr block, Bytes size_B);

}  // namespace lowtide::shim
