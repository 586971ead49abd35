// Python's view of the arena: conversions only. NOWHERE becomes None.
//
// The arena calls back under its mutex, where Python code must not run: another thread could take the interpreter
// lock and wait for the mutex. So costs and movable blocks come as containers, and slides are handed back as a list;
// an arena made in Python describes no memory that would have to move meanwhile.
#include "bind_arena.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/unordered_set.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "arena.hpp"

namespace nb = nanobind;

namespace lowtide {

namespace {

using Move = std::tuple<Bytes, Bytes, Bytes>;  // from, to, size
using Offsets = std::optional<std::unordered_set<Bytes>>;

constexpr Bytes TO_THE_END = std::numeric_limits<Bytes>::max();

std::optional<Bytes> where(Bytes offset_B) {
  return offset_B == Arena::NOWHERE ? std::nullopt : std::optional<Bytes>(offset_B);
}

End end_of(bool high) { return high ? End::high : End::low; }

Bytes free_block(Arena& arena, Bytes offset_B) {
  const Bytes size_B = arena.free(offset_B);
  if (size_B == Arena::NOWHERE) throw std::invalid_argument("no block begins at this offset");
  return size_B;
}

std::optional<Block> find(const Arena& arena, Bytes byte_B) {
  Block block{};
  return arena.find(byte_B, block) ? std::optional<Block>(block) : std::nullopt;
}

std::vector<std::pair<Bytes, Bytes>> holes(const Arena& arena) {
  std::vector<std::pair<Bytes, Bytes>> holes;
  arena.visit_holes([&](Bytes lo_B, Bytes hi_B) { holes.emplace_back(lo_B, hi_B); });
  return holes;
}

std::optional<Window> cheapest_window(const Arena& arena, Bytes need_B, const std::unordered_map<Bytes, double>& costs,
                                      Bytes lo_B, Bytes hi_B) {
  const auto cost = [&](const Block& block) {
    const auto known = costs.find(block.offset_B);
    return known == costs.end() ? std::numeric_limits<double>::infinity() : known->second;
  };
  Window window = arena.cheapest_window(need_B, lo_B, hi_B, cost);
  return window.found() ? std::optional<Window>(std::move(window)) : std::nullopt;
}

Arena::Movable movable_of(const Offsets& offsets) {
  return [&offsets](const Block& block) { return !offsets || offsets->count(block.offset_B) > 0; };
}

Arena::Relocate noting(std::vector<Move>& moves) {
  return [&moves](Bytes from_B, Bytes to_B, Bytes size_B) {
    moves.emplace_back(from_B, to_B, size_B);
    return true;
  };
}

std::vector<Move> compact(Arena& arena, const Offsets& movable, Bytes lo_B, Bytes hi_B) {
  std::vector<Move> moves;
  arena.compact(lo_B, hi_B, movable_of(movable), noting(moves));
  return moves;
}

std::pair<std::optional<Bytes>, std::vector<Move>> slide_for(Arena& arena, Bytes need_B, const Offsets& movable,
                                                             Bytes lo_B, Bytes hi_B) {
  std::vector<Move> moves;
  const Slide slid = arena.slide_for(need_B, lo_B, hi_B, movable_of(movable), noting(moves));
  return {where(slid.hole_B), std::move(moves)};
}

void bind_answers(nb::module_& m) {
  nb::class_<Block>(m, "Block")
      .def_ro("offset_B", &Block::offset_B)
      .def_ro("requested_B", &Block::requested_B)
      .def_ro("reserved_B", &Block::reserved_B)
      .def_ro("tag", &Block::tag);
  nb::class_<Window>(m, "Window")
      .def_ro("lo_B", &Window::lo_B)
      .def_ro("hi_B", &Window::hi_B)
      .def_ro("cost", &Window::cost)
      .def_ro("evicted_B", &Window::evicted_B)
      .def_ro("evicted", &Window::evicted);
  nb::class_<ArenaStatistics>(m, "ArenaStatistics")
      .def_ro("capacity_B", &ArenaStatistics::capacity_B)
      .def_ro("alignment_B", &ArenaStatistics::alignment_B)
      .def_ro("in_use_B", &ArenaStatistics::in_use_B)
      .def_ro("requested_B", &ArenaStatistics::requested_B)
      .def_ro("peak_in_use_B", &ArenaStatistics::peak_in_use_B)
      .def_ro("peak_requested_B", &ArenaStatistics::peak_requested_B)
      .def_ro("low_high_B", &ArenaStatistics::low_high_B)
      .def_ro("top_depth_B", &ArenaStatistics::top_depth_B)
      .def_ro("high_water_B", &ArenaStatistics::high_water_B)
      .def_ro("largest_hole_B", &ArenaStatistics::largest_hole_B)
      .def_ro("blocks", &ArenaStatistics::blocks)
      .def_ro("holes", &ArenaStatistics::holes)
      .def_ro("allocations", &ArenaStatistics::allocations)
      .def_ro("frees", &ArenaStatistics::frees)
      .def_ro("moves", &ArenaStatistics::moves)
      .def_ro("moved_B", &ArenaStatistics::moved_B)
      .def_ro("failures_for_capacity", &ArenaStatistics::failures_for_capacity)
      .def_ro("failures_for_contiguity", &ArenaStatistics::failures_for_contiguity)
      .def_ro("refusals", &ArenaStatistics::refusals);
}

}  // namespace

void bind_arena(nb::module_& m) {
  using namespace nb::literals;
  bind_answers(m);
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<Bytes, Bytes>(), "capacity_B"_a, "alignment_B"_a)
      .def_prop_ro("capacity_B", &Arena::capacity_B)
      .def_prop_ro("alignment_B", &Arena::alignment_B)
      .def("allocate",
           [](Arena& arena, Bytes size_B, Bytes lo_B, Bytes hi_B, bool high, std::uint64_t tag) {
             return where(arena.allocate(size_B, lo_B, hi_B, end_of(high), tag));
           },
           "size_B"_a, "lo_B"_a = 0, "hi_B"_a = TO_THE_END, "high"_a = false, "tag"_a = 0)
      .def("allocate_at",
           [](Arena& arena, Bytes offset_B, Bytes size_B, bool high, std::uint64_t tag) {
             return arena.allocate_at(offset_B, size_B, tag, end_of(high));
           },
           "offset_B"_a, "size_B"_a, "high"_a = false, "tag"_a = 0)
      .def("free", &free_block, "offset_B"_a)
      .def("size_of", [](const Arena& arena, Bytes offset_B) { return where(arena.size_of(offset_B)); }, "offset_B"_a)
      .def("find", &find, "byte_B"_a)
      .def("set_tag", &Arena::set_tag, "offset_B"_a, "tag"_a)
      .def("blocks", nb::overload_cast<Bytes, Bytes>(&Arena::blocks, nb::const_), "lo_B"_a = 0, "hi_B"_a = TO_THE_END)
      .def("holes", &holes)
      .def("in_use_within",
           [](const Arena& arena, Bytes lo_B, Bytes hi_B) {
             const Usage usage = arena.in_use_within(lo_B, hi_B);
             return std::make_pair(usage.in_use_B, usage.blocks);
           },
           "lo_B"_a, "hi_B"_a)
      .def("cheapest_window", &cheapest_window, "need_B"_a, "costs"_a, "lo_B"_a = 0, "hi_B"_a = TO_THE_END)
      .def("compact", &compact, "movable"_a = nb::none(), "lo_B"_a = 0, "hi_B"_a = TO_THE_END)
      .def("slide_for", &slide_for, "need_B"_a, "movable"_a = nb::none(), "lo_B"_a = 0, "hi_B"_a = TO_THE_END)
      .def("statistics", &Arena::statistics)
      .def("reset_peaks", &Arena::reset_peaks)
      .def("check", &Arena::check);
}

}  // namespace lowtide
