#include "bodies.hpp"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstring>

#include "eager/capacity.hpp"

namespace lowtide::shim {

using eager::NOWHERE;
using eager::tag_of;

namespace {

const char* const GONE =
    "lowtide: the bytes of this tensor were evicted to keep a budget, and are recomputed by operators that the thread "
    "of the open lowtide.eager runs. What touches them otherwise (another thread, a library that takes addresses) has "
    "to ask for a copy first: tensor.clone(), in that thread.";

// The caller holds the storage.
void see(Body& body, Storage& storage) {
  body.seen = &storage;
  c10::raw::weak_intrusive_ptr::incref(&storage);
  body.weak = c10::weak_intrusive_ptr<Storage>::reclaim(&storage);
}

void* address(const Storage& storage) { return const_cast<Storage&>(storage)._mutable_data_ptr_no_checks().get(); }

}  // namespace

std::uint64_t digest_of(const Storage& storage) {
  constexpr std::uint64_t PRIME = 0x9e3779b97f4a7c15u;
  const auto* const bytes = static_cast<const char*>(address(storage));
  const std::size_t size = storage.nbytes();
  std::uint64_t lanes[4] = {1, 2, 3, 4};  // four at once: each waits for its own product only
  std::size_t i = 0;
  for (; i + sizeof(lanes) <= size; i += sizeof(lanes)) {
    std::uint64_t words[4];
    std::memcpy(words, bytes + i, sizeof(words));
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = ((lanes[lane] ^ words[lane]) * PRIME) ^ (lanes[lane] >> 29);
  }
  for (; i < size; ++i) lanes[0] = (lanes[0] ^ static_cast<unsigned char>(bytes[i])) * PRIME;
  return ((lanes[0] * PRIME ^ lanes[1]) * PRIME ^ lanes[2]) * PRIME ^ lanes[3];
}

c10::intrusive_ptr<Storage> storage_over(c10::DataPtr block, Bytes size_B) {
  return c10::make_intrusive<Storage>(Storage::use_byte_size_t(), static_cast<std::size_t>(size_B), std::move(block),
                                      c10::GetAllocator(c10::DeviceType::CPU), true);
}

Bytes Bodies::offset_of(const Storage& storage) const {
  const void* p = address(storage);
  return p != nullptr && slab_.owns(p) ? slab_.offset_of(p) : NOWHERE;
}

void Bodies::label(ValueId value, bool kept) {
  const auto storage = (*this)[value].aside != nullptr ? (*this)[value].aside : (*this)[value].hold();
  if (storage != nullptr) slab_.own(address(*storage), tag_of(value) | (kept ? Slab::KEPT : 0));
}

void Bodies::show(ValueId value, Storage& storage, bool kept) {
  Body& body = (*this)[value];
  see(body, storage);
  by_storage_[&storage] = value;
  slab_.own(address(storage), tag_of(value) | (kept ? Slab::KEPT : 0));
}

void Bodies::show_outside(ValueId value, Storage& storage, c10::intrusive_ptr<Storage> aside) {
  Body& body = (*this)[value];
  see(body, storage);
  body.aside = std::move(aside);
  body.fixed = true;
  by_storage_[&storage] = value;
  outside_.push_back(value);
  copy_anew(value);
  label(value, false);
}

void Bodies::leave_outside(ValueId value) {
  outside_.erase(std::remove(outside_.begin(), outside_.end(), value), outside_.end());
  died(value, false, 0, 0);
}

bool Bodies::is_stale(ValueId value) {
  const Body& body = (*this)[value];
  if (body.aside == nullptr) return false;
  const auto storage = body.weak.lock();
  return storage != nullptr && std::memcmp(address(*storage), address(*body.aside), storage->nbytes()) != 0;
}

void Bodies::copy_anew(ValueId value) {
  const Body& body = (*this)[value];
  if (const auto storage = body.weak.lock()) std::memcpy(address(*body.aside), address(*storage), storage->nbytes());
}

void Bodies::hand_over(ValueId old, ValueId made) {
  (*this)[made];  // makes an entry for it
  Body& from = (*this)[old];
  Body& to = (*this)[made];
  to.seen = std::exchange(from.seen, nullptr);
  to.weak = std::move(from.weak);
  to.fixed = from.fixed;
  by_storage_[to.seen] = made;
  label(made, false);
}

Bytes Bodies::keep(ValueId value, c10::intrusive_ptr<Storage> storage) {
  Body& body = (*this)[value];
  if (const auto seen = body.seen != nullptr ? body.weak.lock() : nullptr) {
    if (gates_.is_dropped(*seen)) gates_.steal(*seen, *storage);
    label(value, false);
    return offset_of(*seen);
  }
  if (body.own != nullptr) slab_.own(address(*body.own), 0);
  body.own = std::move(storage);
  label(value, false);
  return offset_of(*body.own);
}

Bytes Bodies::pass_on(ValueId old, ValueId made) { return keep(made, std::move((*this)[old].own)); }

void Bodies::unsee(ValueId value) {
  Body& body = (*this)[value];
  if (body.seen == nullptr) return;
  const auto found = by_storage_.find(body.seen);
  if (found != by_storage_.end() && found->second == value) by_storage_.erase(found);
  body.seen = nullptr;
  body.weak.reset();
}

void Bodies::died(ValueId value, bool kept, Bytes offset_B, Bytes size_B) {
  Body& body = (*this)[value];
  unsee(value);
  if (body.aside != nullptr) {
    body.own = std::move(body.aside);
    body.fixed = false;
  } else if (kept) {
    body.own = storage_over(gates_.adopt(static_cast<char*>(slab_.base()) + offset_B, size_B), size_B);
    body.fixed = false;  // nobody else has its address any more
    label(value, false);
  }
}

void Bodies::part(ValueId value, c10::intrusive_ptr<Storage> copy) {
  Body& body = (*this)[value];
  if (const auto storage = body.weak.lock()) {
    if (copy != nullptr) std::memcpy(address(*copy), address(*storage), storage->nbytes());
    slab_.own(address(*storage), 0);
  }
  unsee(value);
  body.fixed = false;
  body.own = std::move(copy);
  if (body.own != nullptr) label(value, false);
}

void Bodies::release(ValueId value) {
  Body& body = (*this)[value];
  if (body.own != nullptr) {
    slab_.own(address(*body.own), 0);
    body.own.reset();
  } else if (const auto seen = body.aside == nullptr ? body.hold() : nullptr) {
    if (!gates_.is_dropped(*seen)) gates_.drop(*seen, GONE, slab_, tag_of(value));
  }
}

void Bodies::forget(ValueId value) {
  Body& body = (*this)[value];
  if (body.own != nullptr) slab_.own(address(*body.own), 0);
  if (body.aside != nullptr) slab_.own(address(*body.aside), 0);
  if (const auto seen = body.seen != nullptr ? body.weak.lock() : nullptr)
    if (!gates_.is_dropped(*seen)) slab_.own(address(*seen), 0);
  unsee(value);
  body = Body();
}

void Bodies::end() {
  for (std::size_t i = 0; i < bodies_.size(); ++i) forget(static_cast<ValueId>(i));
  by_storage_.clear();
  outside_.clear();
}

}  // namespace lowtide::shim
