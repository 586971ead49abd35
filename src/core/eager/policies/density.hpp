// Density: what calls cost per byte that they make, on the geometric mean over bytes. Small results do not count.
#pragma once
#include <cmath>

#include "../ledger.hpp"

namespace lowtide::eager {

class Density {
 public:
  static constexpr Bytes SMALL_B = 10240;

  Density() = default;
  // As another one has learnt it.
  Density(double weighted_log, double weight_B) : weighted_log_(weighted_log), weight_B_(weight_B) {}

  // A first run.
  void learn(const Call& call) {
    for (const Output& output : call.outputs) {
      if (output.size_B <= SMALL_B) continue;
      const double weight_B = static_cast<double>(output.size_B);
      weighted_log_ += std::log(static_cast<double>(call.cost_ns + 1) / weight_B) * weight_B;
      weight_B_ += weight_B;
    }
  }
  // Whether such a call costs the mean or more; yes as long as there is none.
  bool is_dense(Nanoseconds cost_ns, Bytes size_B) const {
    if (weight_B_ == 0) return true;
    return std::log(static_cast<double>(cost_ns + 1) / static_cast<double>(size_B)) >= weighted_log_ / weight_B_;
  }
  // Per byte; 0 as long as there is none.
  double mean_ns() const { return weight_B_ > 0 ? std::exp(weighted_log_ / weight_B_) : 0; }

 private:
  double weighted_log_ = 0, weight_B_ = 0;
};

}  // namespace lowtide::eager
