#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace lowtide::shim {

namespace {

class HostMemory final : public Memory {
 public:
  std::size_t unit() const override {
    static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
  }
  char* reserve(std::size_t size) override {
    void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "the memory cannot be reserved");
    return static_cast<char*>(base);
  }
  void give_back(char* base, std::size_t size) noexcept override { ::munmap(base, size); }
  bool trim(char* from, std::size_t size) noexcept override { return ::madvise(from, size, MADV_DONTNEED) == 0; }
};

}  // namespace

Memory& host_memory() {
  static Memory* const kept = new HostMemory;
  return *kept;
}

}  // namespace lowtide::shim
