#include "forecasts.hpp"

namespace lowtide::shim {

namespace {

constexpr std::size_t MOST = 1 << 16;  // kinds of calls that are remembered

void mix(std::uint64_t& hash, std::int64_t number) {
  hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 29;
}

}  // namespace

Likeness likeness_of(const Closure& closure) {
  std::uint64_t hash = closure.op->hash;
  for (const Ref& ref : closure.refs) {
    if (ref.input == Ref::NUMBER) continue;
    mix(hash, static_cast<std::int64_t>(ref.dtype.itemsize()));
    mix(hash, ref.dims);
    for (std::int32_t i = 0; i < ref.dims; ++i) mix(hash, closure.shapes[ref.shape + static_cast<std::uint32_t>(i)]);
  }
  for (const c10::IValue& argument : closure.arguments) {
    if (!argument.isList()) continue;
    const auto items = argument.toListRef();
    if (items.empty() || !(items[0].isInt() || items[0].isBool())) continue;
    mix(hash, static_cast<std::int64_t>(items.size()));
    for (const c10::IValue& item : items) mix(hash, item.isInt() ? item.toInt() : static_cast<std::int64_t>(item.toBool()));
  }
  return {closure.op->hash, hash};
}

const Forecast* Forecasts::of(const Likeness& like) const {
  auto found = of_.find(like.call);
  if (found == of_.end()) found = of_.find(like.op);
  return found == of_.end() ? nullptr : &found->second;
}

void Forecasts::learn(const Likeness& like, const Forecast& forecast) {
  if (of_.size() >= MOST) of_.clear();
  of_[like.op] = forecast;  // not in one statement: the second lookup may move the first
  of_[like.call] = forecast;
}

Slice<Bytes> Forecasts::blocks_of(const Likeness& like) const {
  const auto found = blocks_B_.find(like.call);
  return found == blocks_B_.end() ? Slice<Bytes>() : Slice<Bytes>(found->second);
}

void Forecasts::asked(const Likeness& like, std::vector<Bytes> blocks_B) {
  if (blocks_B_.size() >= MOST) blocks_B_.clear();
  blocks_B_[like.call] = std::move(blocks_B);
}

}  // namespace lowtide::shim
