#include "capacity.hpp"

#include <algorithm>
#include <unordered_map>

namespace lowtide::eager {

namespace {
constexpr Bytes ZONE_SHARE = 128, MOST_ZONE_B = Bytes{10} << 20;
}  // namespace

Bytes Tank::allocate(Bytes size_B, End, std::uint64_t) {
  if (!fits(size_B)) return NOWHERE;
  in_use_B_ += size_B;
  peak_B_ = std::max(peak_B_, in_use_B_);
  return 0;
}

void Tank::free(Bytes, Bytes size_B) { in_use_B_ -= size_B; }

Slide Tank::slide_for(Bytes, const Movable&, const Relocate&) { return {}; }

Addresses::Addresses(Bytes capacity_B, Bytes alignment_B, Bytes small_B)
    : arena_(capacity_B, alignment_B), small_B_(small_B) {
  const Bytes all_B = arena_.capacity_B();
  const Bytes zone_B = small_B > 0 ? std::min(MOST_ZONE_B, all_B / ZONE_SHARE) : 0;
  zone_lo_B_ = (all_B - zone_B) / alignment_B * alignment_B;
}

Bytes Addresses::in_use_B() const { return arena_.statistics().in_use_B; }

Bytes Addresses::peak_B() const { return arena_.statistics().peak_in_use_B; }

Bytes Addresses::reserved_for(Bytes size_B) const {
  const Bytes unit_B = arena_.alignment_B();
  return (std::max<Bytes>(size_B, 1) + unit_B - 1) / unit_B * unit_B;
}

bool Addresses::fits(Bytes need_B) const { return arena_.statistics().largest_hole_B >= reserved_for(need_B); }

Bytes Addresses::allocate(Bytes size_B, End end, std::uint64_t tag) {
  const Bytes all_B = arena_.capacity_B();
  const bool is_small = size_B <= small_B_;
  const Bytes lo_B = is_small ? zone_lo_B_ : 0, hi_B = is_small ? all_B : zone_lo_B_;
  const End from = is_small ? End::high : end;
  const Bytes offset_B = hi_B > lo_B ? arena_.allocate(size_B, lo_B, hi_B, from, tag) : NOWHERE;
  return offset_B != NOWHERE ? offset_B : arena_.allocate(size_B, 0, all_B, from, tag);
}

void Addresses::free(Bytes offset_B, Bytes) { arena_.free(offset_B); }

void Addresses::pieces(std::vector<Piece>& pieces) const { pieces_of(arena_, 0, arena_.capacity_B(), pieces); }

Adjacent Addresses::adjacent(Bytes offset_B) const { return adjacent_in(arena_, offset_B); }

Slide Addresses::slide_for(Bytes need_B, const Movable& movable, const Relocate& relocate) {
  return slide_values(arena_, need_B, 0, arena_.capacity_B(), movable, relocate);
}

Slide Addresses::compact(const Movable& movable, const Relocate& relocate) {
  return compact_values(arena_, 0, zone_lo_B_, movable, relocate);
}

Adjacent adjacent_in(const Arena& arena, Bytes offset_B) {
  Adjacent adjacent{0, 0};
  Block block{};
  if (!arena.find(offset_B, block)) return adjacent;
  const Bytes end_B = block.offset_B + block.reserved_B;
  arena.visit_holes([&](Bytes lo_B, Bytes hi_B) {
    if (hi_B == block.offset_B) adjacent.below_B = hi_B - lo_B;
    if (lo_B == end_B) adjacent.above_B = hi_B - lo_B;
  });
  return adjacent;
}

namespace {

// The arena says where a block goes, not whose it is: that was said when it asked what may move.
template <class SlideBlocks>
Slide slide_with_owners(const Capacity::Movable& movable, const Capacity::Relocate& relocate, const SlideBlocks& slide) {
  std::unordered_map<Bytes, ValueId> whose;
  const auto may_move = [&](const Block& block) {
    if (block.tag == NO_TAG || !movable(value_of(block.tag))) return false;
    whose[block.offset_B] = value_of(block.tag);
    return true;
  };
  const auto move = [&](Bytes from_B, Bytes to_B, Bytes) {
    const ValueId value = whose.at(from_B);
    if (!relocate(value, from_B, to_B)) return false;
    whose[to_B] = value;
    return true;
  };
  return slide(may_move, move);
}

}  // namespace

Slide slide_values(Arena& arena, Bytes need_B, Bytes lo_B, Bytes hi_B, const Capacity::Movable& movable,
                   const Capacity::Relocate& relocate) {
  return slide_with_owners(movable, relocate, [&](const Arena::Movable& may_move, const Arena::Relocate& move) {
    return arena.slide_for(need_B, lo_B, hi_B, may_move, move);
  });
}

Slide compact_values(Arena& arena, Bytes lo_B, Bytes hi_B, const Capacity::Movable& movable,
                     const Capacity::Relocate& relocate) {
  return slide_with_owners(movable, relocate, [&](const Arena::Movable& may_move, const Arena::Relocate& move) {
    return arena.compact(lo_B, hi_B, may_move, move);
  });
}

void pieces_of(const Arena& arena, Bytes lo_B, Bytes hi_B, std::vector<Piece>& pieces) {
  pieces.clear();
  Bytes at_B = lo_B;
  arena.visit_blocks(lo_B, hi_B, [&](const Block& block) {
    if (block.offset_B > at_B) pieces.push_back({at_B, block.offset_B, NO_VALUE, true});
    at_B = block.offset_B + block.reserved_B;
    pieces.push_back({block.offset_B, at_B, block.tag == NO_TAG ? NO_VALUE : value_of(block.tag), false});
  });
  if (at_B < hi_B) pieces.push_back({at_B, hi_B, NO_VALUE, true});
}

}  // namespace lowtide::eager
