// The simulated GPU as a runtime library, under the names that torch's has, and the handles by which a test drives it.
#include "fake_cuda.hpp"

#define FAKE extern "C" __attribute__((visibility("default")))

using lowtide::shim::Event;
using lowtide::shim::Stream;

FAKE int cudaGetDevice(int* device) { return fake::get_device(device); }
FAKE int cudaSetDevice(int device) { return fake::set_device(device); }
FAKE int cudaMalloc(void** p, std::size_t size) { return fake::reserve(p, size); }
FAKE int cudaFree(void* p) { return fake::give_back(p); }
FAKE int cudaMemGetInfo(std::size_t* free, std::size_t* total) { return fake::memory(free, total); }
FAKE int cudaEventCreateWithFlags(Event* event, unsigned flags) { return fake::make_event(event, flags); }
FAKE int cudaEventRecord(Event event, Stream stream) { return fake::record(event, stream); }
FAKE int cudaEventQuery(Event event) { return fake::query(event); }
FAKE int cudaEventSynchronize(Event event) { return fake::wait(event); }
FAKE int cudaStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  return fake::stream_wait(stream, event, flags);
}
FAKE int cudaDeviceSynchronize() { return fake::device_wait(); }
FAKE int cudaGetLastError() { return fake::forget_error(); }
FAKE const char* cudaGetErrorString(int status) { return fake::text(status); }

FAKE std::int64_t fake_issue(std::uintptr_t stream) { return fake::issue(fake::stream(stream)); }
FAKE void fake_finish(std::uintptr_t stream) { fake::finish(fake::stream(stream)); }
FAKE void fake_make_touchable() { fake::gpu().is_touchable = true; }
FAKE void fake_capture(bool is_captured) { fake::gpu().is_captured = is_captured; }
FAKE bool fake_comes_after(std::uintptr_t stream, std::uintptr_t other, std::int64_t number) {
  return fake::comes_after(fake::stream(stream), fake::stream(other), number);
}
FAKE std::size_t fake_used() { return fake::gpu().used; }
