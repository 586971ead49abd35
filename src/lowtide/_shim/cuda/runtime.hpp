// Runtime: the few functions of the CUDA runtime that the arena calls, as a table of pointers.
//
// They are taken from the runtime library that torch has loaded into this process, so there is never a second one, and
// neither CUDA's headers nor its compiler are needed. A test fills the table with a simulated device.
// INVARIANT: once use() has been called, every entry is a function; the table does not change while a device exists.
#pragma once
#include <cstddef>
#include <string>

struct CUstream_st;
struct CUevent_st;

namespace lowtide::shim {

using Stream = CUstream_st*;  // cudaStream_t
using Event = CUevent_st*;    // cudaEvent_t

struct Runtime {
  using Status = int;  // cudaError_t
  static constexpr Status OK = 0, NOT_READY = 600;
  static constexpr unsigned NO_TIMING = 2;  // of an event

  Status (*get_device)(int* device);
  Status (*set_device)(int device);
  Status (*reserve)(void** p, std::size_t size);
  Status (*give_back)(void* p);
  Status (*memory)(std::size_t* free, std::size_t* total);  // of the current device
  Status (*make_event)(Event* event, unsigned flags);
  Status (*record)(Event event, Stream stream);
  Status (*query)(Event event);
  Status (*wait)(Event event);                                  // by the calling thread
  Status (*stream_wait)(Stream stream, Event event, unsigned flags);  // by what is issued to the stream from now on
  Status (*device_wait)();
  Status (*forget_error)();
  const char* (*text)(Status status);
};

// From torch's libraries. Throws std::runtime_error: none is loaded, or it lacks a function.
Runtime loaded_runtime();
// From a library that is named, which stays loaded. Throws std::runtime_error.
Runtime runtime_of(const std::string& library);

void use(const Runtime& runtime);
bool has_runtime();
const Runtime& runtime();

// "cudaMalloc failed: out of memory (2)"; the error is forgotten.
std::string failure(const char* call, Runtime::Status status);

// Makes a device the current one of this thread for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();

 private:
  int before_ = -1;  // -1: nothing to go back to
};

}  // namespace lowtide::shim
