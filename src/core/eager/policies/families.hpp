// Every policy's maker: what the catalogue lists.
#pragma once
#include <memory>

#include "../policy.hpp"

namespace lowtide::eager {

std::unique_ptr<Policy> make_dtr(const PolicyOptions& options);
std::unique_ptr<Policy> make_dtr_classes(const PolicyOptions& options);
std::unique_ptr<Policy> make_dtr_local(const PolicyOptions& options);
std::unique_ptr<Policy> make_lru(const PolicyOptions& options);
std::unique_ptr<Policy> make_msps(const PolicyOptions& options);
std::unique_ptr<Policy> make_size(const PolicyOptions& options);

}  // namespace lowtide::eager
