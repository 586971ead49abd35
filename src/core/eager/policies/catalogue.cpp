// The policies there are. A new one is a file of its own, and one line here and in families.hpp.
#include <iterator>
#include <stdexcept>

#include "families.hpp"

namespace lowtide::eager {

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions&);
};

constexpr Entry POLICIES[] = {
    {"dtr", make_dtr},   {"dtr-classes", make_dtr_classes}, {"dtr-local", make_dtr_local},
    {"lru", make_lru},   {"size", make_size},               {"msps", make_msps},
    {"dte", make_dte},   {"coop", make_coop},               {"coop-no-windows", make_coop_no_windows},
    {"coop-no-partition", make_coop_no_partition},          {"coop-no-in-place", make_coop_no_in_place},
    {"tide", make_tide}, {"tide-memory", make_tide_memory},
};

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Entry& entry : POLICIES) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyOptions& options) {
  std::string known;
  for (const Entry& entry : POLICIES) {
    if (name == entry.name) return entry.make(options);
    known += known.empty() ? entry.name : std::string(", ") + entry.name;
  }
  throw std::invalid_argument("there is no policy '" + name + "'; there are " + known);
}

}  // namespace lowtide::eager
