// Every policy's maker: what the catalogue lists.
#pragma once
#include <memory>

#include "../policy.hpp"

namespace lowtide::eager {

std::unique_ptr<Policy> make_coop(const PolicyOptions& options);
std::unique_ptr<Policy> make_coop_no_in_place(const PolicyOptions& options);
std::unique_ptr<Policy> make_coop_no_partition(const PolicyOptions& options);
std::unique_ptr<Policy> make_coop_no_windows(const PolicyOptions& options);
std::unique_ptr<Policy> make_dte(const PolicyOptions& options);
std::unique_ptr<Policy> make_dtr(const PolicyOptions& options);
std::unique_ptr<Policy> make_dtr_classes(const PolicyOptions& options);
std::unique_ptr<Policy> make_dtr_local(const PolicyOptions& options);
std::unique_ptr<Policy> make_lru(const PolicyOptions& options);
std::unique_ptr<Policy> make_msps(const PolicyOptions& options);
std::unique_ptr<Policy> make_size(const PolicyOptions& options);
std::unique_ptr<Policy> make_tide(const PolicyOptions& options);
std::unique_ptr<Policy> make_tide_memory(const PolicyOptions& options);

}  // namespace lowtide::eager
