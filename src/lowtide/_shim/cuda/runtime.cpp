#include "runtime.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <stdexcept>
#include <vector>

namespace lowtide::shim {

namespace {

Runtime in_use{};
bool is_chosen = false;

// Paths of loaded libraries whose file name begins so.
std::vector<std::string> loaded_libraries(const char* prefix) {
  struct Search {
    const char* prefix;
    std::vector<std::string> found;
  } search{prefix, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        const char* slash = std::strrchr(info->dlpi_name, '/');
        const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
        if (std::strncmp(name, s.prefix, std::strlen(s.prefix)) == 0) s.found.emplace_back(info->dlpi_name);
        return 0;
      },
      &search);
  return search.found;
}

// A library through which the runtime's functions are found: one of torch's, which looks where torch was linked to,
// or else the runtime itself. Its handle stays open, as torch keeps it.
void* library() {
  for (const char* prefix : {"libc10_cuda.so", "libcudart"})
    for (const std::string& path : loaded_libraries(prefix)) {
      void* handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
      if (handle != nullptr && ::dlsym(handle, "cudaMalloc") != nullptr) return handle;
    }
  throw std::runtime_error(
      "no CUDA runtime library (libcudart) is loaded in this process: install a torch that is built with CUDA");
}

template <class Function>
void find(void* handle, const char* name, Function& function) {
  void* found = ::dlsym(handle, name);
  if (found == nullptr) throw std::runtime_error(std::string("torch's CUDA runtime library lacks ") + name);
  static_assert(sizeof(function) == sizeof(found));
  std::memcpy(&function, &found, sizeof(found));
}

Runtime found_in(void* handle) {
  Runtime r{};
  find(handle, "cudaGetDevice", r.get_device);
  find(handle, "cudaSetDevice", r.set_device);
  find(handle, "cudaMalloc", r.reserve);
  find(handle, "cudaFree", r.give_back);
  find(handle, "cudaMemGetInfo", r.memory);
  find(handle, "cudaEventCreateWithFlags", r.make_event);
  find(handle, "cudaEventRecord", r.record);
  find(handle, "cudaEventQuery", r.query);
  find(handle, "cudaEventSynchronize", r.wait);
  find(handle, "cudaStreamWaitEvent", r.stream_wait);
  find(handle, "cudaDeviceSynchronize", r.device_wait);
  find(handle, "cudaGetLastError", r.forget_error);
  find(handle, "cudaGetErrorString", r.text);
  return r;
}

}  // namespace

Runtime loaded_runtime() { return found_in(library()); }

Runtime runtime_of(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_LAZY);
  if (handle == nullptr) throw std::runtime_error(library + " cannot be loaded: " + ::dlerror());
  return found_in(handle);
}

void use(const Runtime& runtime) {
  in_use = runtime;
  is_chosen = true;
}

bool has_runtime() { return is_chosen; }

const Runtime& runtime() { return in_use; }

std::string failure(const char* call, Runtime::Status status) {
  runtime().forget_error();
  return std::string(call) + " failed: " + runtime().text(status) + " (" + std::to_string(status) + ")";
}

OnDevice::OnDevice(int device) {
  int now = -1;
  if (runtime().get_device(&now) == Runtime::OK && now != device && runtime().set_device(device) == Runtime::OK)
    before_ = now;
}

OnDevice::~OnDevice() {
  if (before_ >= 0) runtime().set_device(before_);
}

}  // namespace lowtide::shim
