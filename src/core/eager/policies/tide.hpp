// Tide: lowtide's own policies. Victims by cost per byte, and windows where they cost little more.
//
// Victims go one by one, and each is reckoned with those that went before it. Scattered, they leave holes, and blocks
// have to be slid together, which has a price per byte; so a window (see arena_window.hpp) is taken instead where it
// costs at most half as much again per byte as victims and slides. Recomputed values are kept until their bytes are
// wanted. Where host memory may be used, a value goes there if the copies to and fro take less than running its calls
// again. Where even evicting everything would make no hole, as inside a kernel whose arguments fence the arena, nothing
// goes. Values of hardly any bytes go last of all: once a backward has released what a loss was made of, recomputing it
// takes the whole forward.
#pragma once
#include "../policy.hpp"
#include "density.hpp"
#include "spans_at_stake.hpp"

namespace lowtide::eager {

class AbstractTide : public Policy {
 public:
  explicit AbstractTide(const PolicyOptions& options) : options_(options) {}
  Neighbourhood::Kept neighbourhood() const override { return {true, false, true}; }
  bool sheds() const override { return false; }
  bool slides_at_last() const override { return true; }
  void ended(Scene& scene, CallId id) override { density_.learn(scene.ledger.call(id)); }
  void choose(Scene& scene, Bytes need_B, std::vector<ValueId>& victims) override;
  bool sends(Scene& scene, ValueId id) override;
  const Density& density() const { return density_; }
  void know(const Density& density) { density_ = density; }
  // What sliding so many bytes takes.
  Nanoseconds moves_ns(Bytes moved_B) const;

 protected:
  static constexpr double MOST = 1e300;  // how much one minds what will not be recomputed, or is not worth it

  // How much one would mind evicting the value; 0: not at all.
  virtual double mind(Scene& scene, ValueId id) = 0;

  // What rematerialising it takes, by the shorter of both means.
  double back_ns(const Scene& scene, ValueId id) const;
  // Whether nobody wants it: it has no handle, and nothing evicted that has one would need it.
  static bool is_idle(const Scene& scene, ValueId id);
  // What rematerialising it takes, by how far off that is; dust is minded most.
  double weighed(const Scene& scene, ValueId id, double distance) const;
  // Where nothing is known of what comes: the cost of rematerialising it by the square root of how long it was not
  // used.
  double unguided(const Scene& scene, ValueId id) const;

 private:
  struct Ranked {
    double per_byte;
    std::int64_t filed;
    Bytes size_B;
    ValueId id;
  };
  class Scattered;
  void forget_minds(const Scene& scene);
  void look_at_uncertain(const Scene& scene);
  double moves(const Scene& scene, const Run& window, Bytes moved_B, const std::vector<ValueId>& victims) const;
  bool is_sendable(const Scene& scene, const Value& v) const;
  double copies_ns(const Value& v) const;

  PolicyOptions options_;
  std::vector<double> minds_;  // by ValueId; infinite: it is no candidate
  std::vector<ValueId> minded_, doubtful_;  // whose entries in minds_ and leaving_, or made_of_uncertain_, are set
  std::vector<char> leaving_, made_of_uncertain_;  // by ValueId
  Bytes dust_B_ = 0;
  std::vector<Ranked> ranked_;
  Density density_;
  SpansAtStake spans_;
};

}  // namespace lowtide::eager
