// SlabCapacity: a slab's arena as the eager engine's capacity. What is allocated and freed there is so by torch's
// allocator and by surgery on storages; the engine looks, labels and slides.
#pragma once
#include "eager/capacity.hpp"
#include "slab.hpp"

namespace lowtide::shim {

class SlabCapacity final : public eager::Capacity {
 public:
  explicit SlabCapacity(Slab& slab) : slab_(slab) {}

  bool has_addresses() const override { return true; }
  Bytes capacity_B() const override { return arena().capacity_B(); }
  Bytes in_use_B() const override { return arena().in_use_within(0, capacity_B()).in_use_B; }
  Bytes peak_B() const override { return arena().statistics().peak_in_use_B; }
  Bytes reserved_for(Bytes size_B) const override {
    const Bytes unit_B = arena().alignment_B();
    return std::max<Bytes>(1, (size_B + unit_B - 1) / unit_B) * unit_B;
  }
  bool fits(Bytes need_B) const override { return arena().statistics().largest_hole_B >= reserved_for(need_B); }
  Bytes allocate(Bytes size_B, End end, std::uint64_t tag) override {
    return arena().allocate(size_B, 0, capacity_B(), end, tag);
  }
  void free(Bytes, Bytes) override {}  // the executor has released the block
  void set_tag(Bytes offset_B, std::uint64_t tag) override { arena().set_tag(offset_B, tag); }
  void pieces(std::vector<eager::Piece>& pieces) const override { eager::pieces_of(arena(), 0, capacity_B(), pieces); }
  eager::Adjacent adjacent(Bytes offset_B) const override { return eager::adjacent_in(arena(), offset_B); }
  Slide slide_for(Bytes need_B, const Movable& movable, const Relocate& relocate) override {
    return eager::slide_values(arena(), reserved_for(need_B), 0, capacity_B(), movable, relocate);
  }
  Slide compact(const Movable& movable, const Relocate& relocate) override {
    return eager::compact_values(arena(), 0, slab_.persistent_lo(), movable, relocate);
  }

 private:
  Arena& arena() const { return slab_.arena(); }

  Slab& slab_;
};

}  // namespace lowtide::shim
