#include "bodies.hpp"

#include <c10/core/Allocator.h>

#include "eager/room.hpp"

namespace lowtide::shim {

using eager::NOWHERE;
using eager::tag_of;

namespace {

const char* const GONE =
    "lowtide: the bytes of this tensor were evicted to keep a budget, and are brought back by operators that the thread "
    "of the open lowtide.eager runs. What touches them otherwise (another thread, a library that takes addresses) has "
    "to ask for a copy first: tensor.clone(), in that thread.";

void* address(const Storage& storage) { return const_cast<Storage&>(storage)._mutable_data_ptr_no_checks().get(); }

}  // namespace

c10::intrusive_ptr<Storage> storage_over(c10::DataPtr block, Bytes size_B) {
  return c10::make_intrusive<Storage>(Storage::use_byte_size_t(), static_cast<std::size_t>(size_B), std::move(block),
                                      c10::GetAllocator(c10::DeviceType::CPU), true);
}

Bytes Bodies::offset_of(const Storage& storage) const {
  const void* p = address(storage);
  return p != nullptr && slab_.owns(p) ? slab_.offset_of(p) : NOWHERE;
}

void Bodies::label(ValueId value, bool kept) {
  const Storage* storage = (*this)[value].aside != nullptr ? (*this)[value].aside.get() : (*this)[value].storage();
  if (storage != nullptr) slab_.own(address(*storage), tag_of(value) | (kept ? Slab::KEPT : 0));
}

void Bodies::show(ValueId value, Storage& storage, bool kept) {
  Body& body = (*this)[value];
  body.seen = &storage;
  by_storage_[&storage] = value;
  slab_.own(address(storage), tag_of(value) | (kept ? Slab::KEPT : 0));
}

void Bodies::show_outside(ValueId value, Storage& storage, c10::intrusive_ptr<Storage> aside) {
  Body& body = (*this)[value];
  body.seen = &storage;
  body.aside = std::move(aside);
  body.weak = c10::weak_intrusive_ptr<Storage>(c10::intrusive_ptr<Storage>::reclaim_copy(&storage));
  body.fixed = true;
  by_storage_[&storage] = value;
  outside_.push_back(value);
  label(value, false);
}

void Bodies::hand_over(ValueId old, ValueId made) {
  (*this)[made];  // there is room for it
  Body& from = (*this)[old];
  Body& to = (*this)[made];
  to.seen = from.seen;
  to.fixed = from.fixed;
  from.seen = nullptr;
  by_storage_[to.seen] = made;
  label(made, false);
}

Bytes Bodies::keep(ValueId value, c10::intrusive_ptr<Storage> storage) {
  Body& body = (*this)[value];
  if (body.seen != nullptr) {
    if (gates_.is_dropped(*body.seen)) gates_.steal(*body.seen, *storage);
    label(value, false);
    return offset_of(*body.seen);
  }
  body.own = std::move(storage);
  label(value, false);
  return offset_of(*body.own);
}

Bytes Bodies::pass_on(ValueId old, ValueId made) { return keep(made, std::move((*this)[old].own)); }

void Bodies::died(ValueId value, bool kept, Bytes offset_B, Bytes size_B) {
  Body& body = (*this)[value];
  by_storage_.erase(body.seen);
  body.seen = nullptr;
  if (kept) {
    body.own = storage_over(gates_.adopt(static_cast<char*>(slab_.base()) + offset_B, size_B), size_B);
    label(value, false);
  }
}

void Bodies::release(ValueId value) {
  Body& body = (*this)[value];
  if (body.own != nullptr) {
    slab_.own(address(*body.own), 0);
    body.own.reset();
  } else if (body.seen != nullptr && body.aside == nullptr && !gates_.is_dropped(*body.seen)) {
    gates_.drop(*body.seen, GONE, slab_, tag_of(value));
  }
}

void Bodies::forget(ValueId value) {
  Body& body = (*this)[value];
  if (body.own != nullptr) slab_.own(address(*body.own), 0);
  if (body.aside != nullptr) slab_.own(address(*body.aside), 0);
  if (body.seen != nullptr) {
    if (!gates_.is_dropped(*body.seen)) slab_.own(address(*body.seen), 0);
    const auto found = by_storage_.find(body.seen);
    if (found != by_storage_.end() && found->second == value) by_storage_.erase(found);
  }
  body = Body();
}

void Bodies::end() {
  for (std::size_t i = 0; i < bodies_.size(); ++i) forget(static_cast<ValueId>(i));
  by_storage_.clear();
  outside_.clear();
}

}  // namespace lowtide::shim
