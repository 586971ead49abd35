// Capacity: where resident bytes are, as eviction manager and policies see it.
//
// `Tank` counts bytes and has no addresses, as DTR's simulator does: whatever is free can be used. `Addresses` is the
// core's arena, so that bytes have to be adjacent. The runtime under torch has one of its own, over a slab's arena.
// A block's tag is tag_of(its value); blocks of nobody (workspaces, what a running kernel has made so far) have tag 0.
// THREADS: the caller holds one lock; an arena's own mutex is taken inside it, never around it.
#pragma once
#include <functional>
#include <vector>

#include "arena.hpp"
#include "ids.hpp"

namespace lowtide::eager {

constexpr std::uint64_t NO_TAG = 0;
inline std::uint64_t tag_of(ValueId id) { return static_cast<std::uint64_t>(id + 1); }
inline ValueId value_of(std::uint64_t tag) { return static_cast<ValueId>(tag) - 1; }

// A stretch of the range: a hole, a value, or bytes of nobody (no hole, no value), which are never evicted.
struct Piece {
  Bytes lo_B, hi_B;
  ValueId value;
  bool hole;
  Bytes size_B() const { return hi_B - lo_B; }
};

// Free bytes on either side of a block, up to the next block.
struct Adjacent {
  Bytes below_B, above_B;
  Bytes sum_B() const { return below_B + above_B; }
};

class Capacity {
 public:
  using Movable = std::function<bool(ValueId)>;
  using Relocate = std::function<bool(ValueId, Bytes from_B, Bytes to_B)>;

  virtual ~Capacity() = default;
  virtual bool has_addresses() const = 0;
  virtual Bytes capacity_B() const = 0;
  virtual Bytes in_use_B() const = 0;
  virtual Bytes peak_B() const = 0;  // the most that was in use
  // What a block of this size takes.
  virtual Bytes reserved_for(Bytes size_B) const = 0;
  // Whether a request of this size would be served now.
  virtual bool fits(Bytes need_B) const = 0;
  // The block's offset, or NOWHERE.
  virtual Bytes allocate(Bytes size_B, End end, std::uint64_t tag) = 0;
  virtual void free(Bytes offset_B, Bytes size_B) = 0;
  virtual void set_tag(Bytes offset_B, std::uint64_t tag) = 0;

  // The range where large blocks lie and windows may be, by address, without gap. A tank has none.
  virtual void pieces(std::vector<Piece>& pieces) const = 0;
  virtual Adjacent adjacent(Bytes offset_B) const = 0;
  // Slides movable values together until there is a hole of need_B; `relocate` moves the bytes. As Arena::slide_for.
  virtual Slide slide_for(Bytes need_B, const Movable& movable, const Relocate& relocate) = 0;
  // Slides all movable values down, those that persist apart.
  virtual Slide compact(const Movable& movable, const Relocate& relocate) = 0;
};

// Bytes alone.
class Tank final : public Capacity {
 public:
  explicit Tank(Bytes capacity_B) : capacity_B_(capacity_B) {}
  bool has_addresses() const override { return false; }
  Bytes capacity_B() const override { return capacity_B_; }
  Bytes in_use_B() const override { return in_use_B_; }
  Bytes peak_B() const override { return peak_B_; }
  Bytes reserved_for(Bytes size_B) const override { return size_B; }
  bool fits(Bytes need_B) const override { return in_use_B_ + need_B <= capacity_B_; }
  Bytes allocate(Bytes size_B, End end, std::uint64_t tag) override;
  void free(Bytes offset_B, Bytes size_B) override;
  void set_tag(Bytes, std::uint64_t) override {}
  void pieces(std::vector<Piece>& pieces) const override { pieces.clear(); }
  Adjacent adjacent(Bytes) const override { return {0, 0}; }
  Slide slide_for(Bytes need_B, const Movable& movable, const Relocate& relocate) override;
  Slide compact(const Movable&, const Relocate&) override { return {}; }

 private:
  Bytes capacity_B_, in_use_B_ = 0, peak_B_ = 0;
};

// An arena. Blocks up to small_B lie apart, so that they fence nothing: in a zone at the high end (1/128 of all, 10 MiB
// at most) while they fit there, and from the high end otherwise. Other blocks lie in that zone where there is no other
// place.
class Addresses final : public Capacity {
 public:
  Addresses(Bytes capacity_B, Bytes alignment_B, Bytes small_B);
  bool has_addresses() const override { return true; }
  Bytes capacity_B() const override { return arena_.capacity_B(); }
  Bytes in_use_B() const override;
  Bytes peak_B() const override;
  Bytes reserved_for(Bytes size_B) const override;
  bool fits(Bytes need_B) const override;
  Bytes allocate(Bytes size_B, End end, std::uint64_t tag) override;
  void free(Bytes offset_B, Bytes size_B) override;
  void set_tag(Bytes offset_B, std::uint64_t tag) override { arena_.set_tag(offset_B, tag); }
  void pieces(std::vector<Piece>& pieces) const override;
  Adjacent adjacent(Bytes offset_B) const override;
  Slide slide_for(Bytes need_B, const Movable& movable, const Relocate& relocate) override;
  Slide compact(const Movable& movable, const Relocate& relocate) override;

 private:
  Arena arena_;
  Bytes small_B_, zone_lo_B_;
};

// A capacity's answers about a part of an arena whose tags are tag_of(value), for every capacity that has an arena.
void pieces_of(const Arena& arena, Bytes lo_B, Bytes hi_B, std::vector<Piece>& pieces);
Adjacent adjacent_in(const Arena& arena, Bytes offset_B);
Slide slide_values(Arena& arena, Bytes need_B, Bytes lo_B, Bytes hi_B, const Capacity::Movable& movable,
                   const Capacity::Relocate& relocate);
Slide compact_values(Arena& arena, Bytes lo_B, Bytes hi_B, const Capacity::Movable& movable,
                     const Capacity::Relocate& relocate);

}  // namespace lowtide::eager
