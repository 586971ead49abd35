#include "floors.hpp"

#include <algorithm>

namespace lowtide {

namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

constexpr Bytes UNBOUNDED = std::numeric_limits<Bytes>::max() / 4;

// Maximum flow by shortest augmenting layers. Arc 2k and arc 2k + 1 are each other's reverse.
class Flow {
 public:
  explicit Flow(std::size_t nodes) : arcs_of_(nodes), level_(nodes), next_(nodes) {}

  void add(Index from, Index to, Bytes capacity) {
    arcs_of_[at(from)].push_back(static_cast<Index>(arcs_.size()));
    arcs_.push_back({to, capacity});
    arcs_of_[at(to)].push_back(static_cast<Index>(arcs_.size()));
    arcs_.push_back({from, 0});
  }

  Bytes maximum(Index source, Index sink) {
    Bytes flow = 0;
    while (layer(source, sink)) {
      std::fill(next_.begin(), next_.end(), 0);
      while (const Bytes pushed = push(source, sink)) flow += pushed;
    }
    return flow;
  }

 private:
  struct Arc {
    Index to;
    Bytes capacity;
  };

  bool layer(Index source, Index sink) {
    std::fill(level_.begin(), level_.end(), -1);
    queue_.assign(1, source);
    level_[at(source)] = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i)
      for (Index a : arcs_of_[at(queue_[i])]) {
        const Arc& arc = arcs_[at(a)];
        if (arc.capacity == 0 || level_[at(arc.to)] >= 0) continue;
        level_[at(arc.to)] = level_[at(queue_[i])] + 1;
        queue_.push_back(arc.to);
      }
    return level_[at(sink)] >= 0;
  }

  // One augmenting path along the layers, without recursion: chains are as deep as the program is long.
  Bytes push(Index source, Index sink) {
    path_.clear();
    Index node = source;
    while (node != sink) {
      std::size_t& next = next_[at(node)];
      if (next == arcs_of_[at(node)].size()) {
        if (path_.empty()) return 0;
        node = arcs_[at(path_.back() ^ 1)].to;
        path_.pop_back();
        ++next_[at(node)];
        continue;
      }
      const Index a = arcs_of_[at(node)][next];
      const Arc& arc = arcs_[at(a)];
      if (arc.capacity > 0 && level_[at(arc.to)] == level_[at(node)] + 1) {
        path_.push_back(a);
        node = arc.to;
      } else {
        ++next;
      }
    }
    Bytes capacity = UNBOUNDED;
    for (Index a : path_) capacity = std::min(capacity, arcs_[at(a)].capacity);
    for (Index a : path_) {
      arcs_[at(a)].capacity -= capacity;
      arcs_[at(a ^ 1)].capacity += capacity;
    }
    return capacity;
  }

  std::vector<Arc> arcs_;
  std::vector<std::vector<Index>> arcs_of_;
  std::vector<Index> level_, queue_, path_;
  std::vector<std::size_t> next_;
};

// Whether the value is live at the stage in every schedule: read there, pinned there, or needed and lost if dropped.
bool is_forced(const Program& program, Index value, Index stage) {
  const Slice uses = program.uses[value];
  if (program.producer[at(value)] >= stage) return false;
  if (std::binary_search(uses.begin(), uses.end(), stage)) return true;
  if (uses.size() == 0 || uses[uses.size() - 1] < stage) return false;
  const bool lost = !program.can_fetch(value) && program.recompute_through[at(program.producer[at(value)])] <= stage;
  return lost || program.gap_start(program.gap_at(value, stage)) >= program.pinned_from[at(value)];
}

}  // namespace

std::vector<Bytes> operator_floors(const Program& program) {
  std::vector<Bytes> floor(at(program.stage_count()) + 1, 0);
  const auto live = [&](Index first, Index last, Bytes size) {  // both ends included
    if (first > last) return;
    floor[at(first)] += size;
    floor[at(last) + 1] -= size;
  };
  for (Index v = 0; v < program.value_count(); ++v) {
    const Slice uses = program.uses[v];
    if (uses.size() == 0) continue;
    const Bytes size = program.size[at(v)];
    // From here on every stage up to the last use finds it live; before, only the stages that read it.
    Index forced = NEVER;
    if (!program.can_fetch(v))
      forced = std::max(program.producer[at(v)] + 1, program.recompute_through[at(program.producer[at(v)])]);
    if (program.pinned_from[at(v)] != NEVER) {
      const auto pinned = std::lower_bound(uses.begin(), uses.end(), program.pinned_from[at(v)]);
      if (program.producer[at(v)] >= program.pinned_from[at(v)]) forced = program.producer[at(v)] + 1;
      else if (pinned != uses.end()) forced = std::min(forced, *pinned);
    }
    const Index last = uses[uses.size() - 1];
    for (Index use : uses)
      if (use < forced) live(use, use, size);
    live(forced, last, size);
  }
  Bytes now = program.fixed;
  for (Index t = 0; t < program.stage_count(); ++t) {
    now += floor[at(t)];
    floor[at(t)] = now + program.least_peak(t);
  }
  floor.pop_back();
  return floor;
}

Bytes cut_floor(const Program& program, Index stage) {
  const Index values = program.value_count();
  const Index source = values + stage, sink = source + 1;
  const auto node_of = [&](Index recipe) { return values + recipe; };
  Flow flow(at(sink) + 1);
  std::vector<char> forced(at(values), 0);
  // What the stage's run may overwrite is there when it starts; to be kept, it takes what is spared otherwise.
  const Slice takeovers = program.takeovers[stage];
  const Index taken = takeovers.size() == 1 && program.may_take(stage, takeovers[0]) ? takeovers[0] : -1;
  const Bytes spared = program.trace_peak[at(stage)] - program.least_peak(stage);
  Bytes floor = program.fixed + program.least_peak(stage);
  for (Index v = 0; v < values; ++v) {
    const Index recipe = program.producer[at(v)];
    if (recipe >= stage) continue;
    if (is_forced(program, v, stage)) {
      floor += program.size[at(v)];
      forced[at(v)] = v != taken;
      if (v != taken) continue;
    }
    if (program.can_fetch(v)) continue;
    const Slice uses = program.uses[v];
    if (uses.size() > 0 && uses[uses.size() - 1] > stage) flow.add(source, v, UNBOUNDED);
    const bool lost = program.recompute_through[at(recipe)] <= stage;
    flow.add(v, lost ? sink : node_of(recipe), v == taken ? std::min(spared, program.size[at(v)]) : program.size[at(v)]);
  }
  for (Index r = 0; r < stage; ++r)
    for (Index v : program.reads[r])
      if (!forced[at(v)] && program.recompute_through[at(r)] > stage) flow.add(node_of(r), v, UNBOUNDED);
  return floor + flow.maximum(source, sink);
}

}  // namespace lowtide
