// Sections: time cut up for the exact search, one section per largest set of buffers that are live together.
//
// Sections lie on a circle, as ticks do; a buffer lives in a run of them. Two buffers share a tick exactly if they
// share a section. Invariant: start in [0, count), length in [1, count]; `over` and `begins` list buffers in rising
// order.
#pragma once
#include "lifetimes.hpp"

namespace lowtide {

struct Sections {
  Index count = 1;
  std::vector<Index> start, length;  // by buffer
  std::vector<char> endless;         // by buffer: it lives at every tick of the period, and on into the next one
  Rows over;                         // section -> buffers that live in it
  Rows begins;                       // section -> buffers whose run begins with it

  explicit Sections(const Lifetimes& lifetimes);

  Index next(Index section) const { return section + 1 == count ? 0 : section + 1; }
  bool covers(Index buffer, Index section) const {
    const Index ahead = section - start[static_cast<std::size_t>(buffer)];
    return (ahead < 0 ? ahead + count : ahead) < length[static_cast<std::size_t>(buffer)];
  }
  // Calls visit(section) for every section of a run.
  template <class Visit>
  void walk(Index first, Index steps, Visit&& visit) const {
    for (Index s = first; steps > 0; --steps, s = next(s)) visit(s);
  }
  // Calls visit(other) once for every buffer that lives in one of the sections of a run.
  template <class Visit>
  void meeting(Index first, Index steps, Visit&& visit) const {
    for (Index other : over[first]) visit(other);
    walk(next(first), steps - 1, [&](Index s) {
      for (Index other : begins[s])
        if (!covers(other, first)) visit(other);
    });
  }
  bool is_valid() const;
};

}  // namespace lowtide
