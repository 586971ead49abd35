// Draw: where a CPU generator stood before an operator drew from it, so that its recomputation draws the same.
//
// The state is copied field by field, no tensor is made. `At` puts a generator there and, at its end, back to where it
// was in between.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <memory>
#include <mutex>

namespace lowtide::shim {

class Draw {
 public:
  // The generator given, else the CPU's default one.
  explicit Draw(const std::optional<at::Generator>& given);

  // Puts it back to where it stood: what has been drawn since was drawn in vain.
  void rewind() const;

  class At {
   public:
    explicit At(const Draw& draw);
    At(const At&) = delete;
    At& operator=(const At&) = delete;
    ~At();

   private:
    const Draw& draw_;
    std::shared_ptr<at::CPUGeneratorImpl> present_;
  };

 private:
  at::CPUGeneratorImpl& source() const { return *static_cast<at::CPUGeneratorImpl*>(generator_.unsafeGetGeneratorImpl()); }

  at::Generator generator_;
  std::shared_ptr<at::CPUGeneratorImpl> state_;
};

}  // namespace lowtide::shim
