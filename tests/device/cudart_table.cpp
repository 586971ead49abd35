// The table of the CUDA runtime's functions as CUDA's own header declares them: this file compiles, or they differ.
#include <cuda_runtime_api.h>

#include <type_traits>

#include "cuda/runtime.hpp"

namespace {

using lowtide::shim::Runtime;

template <class Ours, class Theirs>
constexpr bool is_passed_alike =
    std::is_same_v<Ours, Theirs> ||
    (std::is_enum_v<Theirs> && std::is_integral_v<Ours> && sizeof(Ours) == sizeof(Theirs));

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class R, class S, class... A, class... B>
struct Alike<R (*)(A...), S (*)(B...)> : std::bool_constant<is_passed_alike<R, S> && (is_passed_alike<A, B> && ...)> {};

#define LOWTIDE_CALLS(member, function) static_assert(Alike<decltype(Runtime::member), decltype(&function)>::value)
LOWTIDE_CALLS(get_device, cudaGetDevice);
LOWTIDE_CALLS(set_device, cudaSetDevice);
LOWTIDE_CALLS(reserve, cudaMalloc);
LOWTIDE_CALLS(give_back, cudaFree);
LOWTIDE_CALLS(memory, cudaMemGetInfo);
LOWTIDE_CALLS(make_event, cudaEventCreateWithFlags);
LOWTIDE_CALLS(record, cudaEventRecord);
LOWTIDE_CALLS(query, cudaEventQuery);
LOWTIDE_CALLS(wait, cudaEventSynchronize);
LOWTIDE_CALLS(stream_wait, cudaStreamWaitEvent);
LOWTIDE_CALLS(device_wait, cudaDeviceSynchronize);
LOWTIDE_CALLS(forget_error, cudaGetLastError);
LOWTIDE_CALLS(text, cudaGetErrorString);

static_assert(Runtime::OK == cudaSuccess && Runtime::NOT_READY == cudaErrorNotReady);
static_assert(Runtime::NO_TIMING == cudaEventDisableTiming);
static_assert(std::is_same_v<lowtide::shim::Stream, cudaStream_t> && std::is_same_v<lowtide::shim::Event, cudaEvent_t>);

}  // namespace
