#include "operators.hpp"

#include <ATen/core/function_schema.h>

#include <algorithm>

namespace lowtide::shim {

namespace {

bool begins_with(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

std::string name_of(const c10::OperatorHandle& handle) {
  std::string name = handle.operator_name().name;
  const std::size_t colons = name.find("::");
  if (colons != std::string::npos) name.replace(colons, 2, ".");
  const std::string& overload = handle.operator_name().overload_name;
  return name + "." + (overload.empty() ? "default" : overload);
}

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

int position_of(const c10::FunctionSchema& schema, const std::string& name) {
  const auto found = schema.argumentIndexWithName(name);
  return found ? *found : -1;
}

bool looks_at_arguments_only(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() && std::all_of(schema.returns().begin(), schema.returns().end(),
                                                  [](const c10::Argument& a) { return a.alias_info() != nullptr; });
}

}  // namespace

Operator::Operator(const c10::OperatorHandle& with, const Silence& silence)
    : handle(with), name(name_of(with)), hash(hash_of(name)), cost(cost_kind(name)) {
  const c10::FunctionSchema& schema = handle.schema();
  arguments = schema.arguments().size();
  returns = schema.returns().size();
  for (std::size_t i = 0; i < arguments; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    writes.push_back(static_cast<int>(i));
    is_out = is_out || schema.arguments()[i].kwarg_only();
  }
  const bool writes_nothing_said = writes.empty();
  const auto found = silence.hidden.find(name);
  if (found != silence.hidden.end()) {
    for (const std::string& argument : found->second.writes) hidden_writes.push_back(position_of(schema, argument));
    for (const std::string& argument : found->second.spare) spare.push_back(position_of(schema, argument));
    only_if = found->second.only_if.empty() ? -1 : position_of(schema, found->second.only_if);
    is_random = found->second.draws;
  }
  const bool moves_only = handle.hasTag(at::Tag::inplace_view) && !begins_with(name, "aten.resize");
  if (moves_only) writes.clear();
  is_view = moves_only || silence.views.count(name) > 0 ||
            (writes_nothing_said && hidden_writes.empty() && looks_at_arguments_only(schema));
  is_random = is_random || handle.hasTag(at::Tag::nondeterministic_seeded);
  is_composite = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                 !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  const std::string space = name.substr(0, name.find('.'));
  communicates = silence.communicating.count(space) > 0;
  is_foreign = !communicates && silence.trusted.count(space) == 0;
  is_random = is_random || is_foreign;
  is_view = is_view && !communicates;
  is_known = !begins_with(name, "aten.resize") && !communicates;
  makes = std::any_of(schema.returns().begin(), schema.returns().end(),
                      [](const c10::Argument& a) { return a.alias_info() == nullptr; });
  precisions = Precisions::behind(name, handle.hasTag(at::Tag::pointwise));
}

const Operator& Operators::of(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema* schema = &handle.schema();
  const std::size_t slot = (reinterpret_cast<std::uintptr_t>(schema) >> 6) & 63;
  if (last_schema_[slot] == schema) return *last_[slot];
  std::unique_ptr<Operator>& known = known_[schema];
  if (known == nullptr) known = std::make_unique<Operator>(handle, silence_);
  last_schema_[slot] = schema;
  last_[slot] = known.get();
  return *known;
}

}  // namespace lowtide::shim
