#include "stillmap/vmm/base/cuda_errors.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "stillmap/vmm/base/undying.h"

namespace stillmap {
namespace {

constexpr errc nothing{};
constexpr errc no_memory = errc::out_of_memory;
constexpr errc wrong = errc::invalid_argument;
constexpr errc cannot = errc::not_supported;
constexpr errc busy = errc::busy;
constexpr errc lost = errc::device_lost;

// Sorted by code. How the last column was chosen:
//   lost     the context answers every later call with the same error, or is gone
//   busy     the same call can succeed later without anybody changing it
//   cannot   this machine, driver, licence or mode refuses the kind of call
//   wrong    this call was refused because of its arguments or its place
//   nothing  the code is used for too many things: 304 hides an errno (no file left, no permission,
//            no memory), 999 is what WSL says of a capability it advertised
constexpr cuda_error known_errors[] = {
    {0, "CUDA_SUCCESS", "no error", nothing},
    {1, "CUDA_ERROR_INVALID_VALUE", "an argument is out of its range", wrong},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "too little memory is free", no_memory},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "the driver was not initialised in this process", cannot},
    {4, "CUDA_ERROR_DEINITIALIZED", "the driver is shutting down", lost},
    {5, "CUDA_ERROR_PROFILER_DISABLED", "profiling is switched off", cannot},
    {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiling needs no initialising", wrong},
    {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiling is on already", wrong},
    {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiling is off already", wrong},
    {34, "CUDA_ERROR_STUB_LIBRARY", "this is the toolkit's stub, not a driver", cannot},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the driver is too old for the call", cannot},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "another process has the device to itself", busy},
    {47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", "no multicast resources are left", no_memory},
    {100, "CUDA_ERROR_NO_DEVICE", "there is no device the driver can use", cannot},
    {101, "CUDA_ERROR_INVALID_DEVICE", "there is no such device", wrong},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "the device has no licence for this", cannot},
    {200, "CUDA_ERROR_INVALID_IMAGE", "the kernel image cannot be read", wrong},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "no context, or the wrong one, is current", wrong},
    {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "the context is current already", wrong},
    {205, "CUDA_ERROR_MAP_FAILED", "the resource could not be mapped", nothing},
    {206, "CUDA_ERROR_UNMAP_FAILED", "the resource could not be unmapped", nothing},
    {207, "CUDA_ERROR_ARRAY_IS_MAPPED", "the array is mapped", busy},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "the resource is mapped already", wrong},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "the kernel was not built for this device", cannot},
    {210, "CUDA_ERROR_ALREADY_ACQUIRED", "the resource is in use already", busy},
    {211, "CUDA_ERROR_NOT_MAPPED", "the resource is not mapped", wrong},
    {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "the resource is not mapped as an array", wrong},
    {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "the resource is not mapped as a pointer", wrong},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "memory had an error beyond correction", lost},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "the device has no such limit", cannot},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "another thread uses the context", busy},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the devices cannot reach each other", cannot},
    {218, "CUDA_ERROR_INVALID_PTX", "the PTX does not compile", wrong},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "the graphics context does not fit", wrong},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "NVLink had an error beyond correction", lost},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "the PTX compiler is not installed", cannot},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX is newer than the driver", cannot},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "compiling PTX is switched off", cannot},
    {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the device cannot be shared so", cannot},
    {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "kernels cannot wait on this device", cannot},
    {226, "CUDA_ERROR_CONTAINED", "an error was contained; the context is broken", lost},
    {227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "the image wants a newer loader", cannot},
    {300, "CUDA_ERROR_INVALID_SOURCE", "the kernel source cannot be read", wrong},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "the file does not exist", wrong},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "a shared library lacks a symbol", cannot},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "a shared library did not start", cannot},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "the operating system refused", nothing},
    {400, "CUDA_ERROR_INVALID_HANDLE", "the handle is not one of the driver's", wrong},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the resource is not in a state for this", wrong},
    {402, "CUDA_ERROR_LOSSY_QUERY", "the answer would leave something out", cannot},
    {500, "CUDA_ERROR_NOT_FOUND", "the driver has nothing of that name", cannot},
    {600, "CUDA_ERROR_NOT_READY", "the work has not finished", busy},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel touched memory it may not", lost},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "the kernel wants more than there is", wrong},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "a kernel ran too long", lost},
    {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "the texture modes disagree", wrong},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is on already", wrong},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access is off", wrong},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "the primary context is in use", busy},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context is gone", lost},
    {710, "CUDA_ERROR_ASSERT", "an assertion in a kernel failed", lost},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "no further peer fits", cannot},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the memory is registered already", busy},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the memory is not registered", wrong},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "a kernel broke its stack", lost},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "a kernel ran an unknown instruction", lost},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "a kernel used a misaligned address", lost},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "a kernel mixed up its address spaces", lost},
    {718, "CUDA_ERROR_INVALID_PC", "a kernel jumped out of its code", lost},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "a kernel failed", lost},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "the cooperative launch is too large", wrong},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "a kernel kept tensor memory", lost},
    {800, "CUDA_ERROR_NOT_PERMITTED", "this is not permitted here", cannot},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "this driver or device cannot do it", cannot},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "a service of the system is not running", cannot},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "kernel module and library disagree", cannot},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility stops here", cannot},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS does not answer", cannot},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", "MPS stopped answering", lost},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS is recovering", busy},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "MPS takes no further client", busy},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "MPS has no connection left", busy},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "MPS ended this client", lost},
    {811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "kernels cannot launch kernels here", cannot},
    {812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "kernels were built for other launches", cannot},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "a capturing stream cannot do it", cannot},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error spoiled the capture", wrong},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures would become one", wrong},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "another stream began this capture", wrong},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a forked stream was not joined", wrong},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "the capture would depend on the outside", wrong},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the default stream would join a capture", cannot},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "the event belongs to a capture", cannot},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "another thread began this capture", wrong},
    {909, "CUDA_ERROR_TIMEOUT", "the wait took too long", busy},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph changed too much", cannot},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "something outside the device failed", lost},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "the cluster has the wrong size", wrong},
    {913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "the function is not loaded", wrong},
    {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "the resource is of the wrong type", wrong},
    {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "the resources do not fit", wrong},
    {916, "CUDA_ERROR_KEY_ROTATION", "the device is changing its keys", busy},
    {917, "CUDA_ERROR_STREAM_DETACHED", "the stream has lost its context", lost},
    {918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "the graph cannot be captured again", cannot},
    {919, "CUDA_ERROR_FABRIC_NOT_READY", "the fabric is not up yet", busy},
    {999, "CUDA_ERROR_UNKNOWN", "the driver does not say why", nothing},
};

constexpr cuda_error unrecognised = {-1, "CUDA_ERROR_UNRECOGNISED",
                                     "a code this version does not know", nothing};

constexpr bool sorted() {
  for (std::size_t i = 1; i < std::size(known_errors); ++i) {
    if (known_errors[i - 1].code >= known_errors[i].code) return false;
  }
  return true;
}
static_assert(sorted(), "describe_cuda_error searches known_errors");

}  // namespace

const cuda_error &describe_cuda_error(int code) noexcept {
  const auto *at = std::lower_bound(std::begin(known_errors), std::end(known_errors), code,
                                    [](const cuda_error &e, int c) { return e.code < c; });
  return at != std::end(known_errors) && at->code == code ? *at : unrecognised;
}

namespace {

class cuda_category_type final : public std::error_category {
 public:
  const char *name() const noexcept override { return "cuda"; }

  std::string message(int code) const override {
    const cuda_error &e = describe_cuda_error(code);
    std::string text = e.name;
    if (e.code != code) text += " " + std::to_string(code);
    return text + " (" + e.meaning + ")";
  }

  std::error_condition default_error_condition(int code) const noexcept override {
    const errc c = describe_cuda_error(code).acts_as;
    return c == errc{} ? std::error_condition(code, *this) : make_error_condition(c);
  }
};

}  // namespace

// Never destroyed: memory freed while the process ends can still fail to be freed.
const std::error_category &cuda_category() noexcept {
  static undying<cuda_category_type> category;
  return *category;
}

bool driver_is_gone(std::error_code code) noexcept {
  if (code.category() != cuda_category()) return false;
  switch (code.value()) {
    case 3:    // after fork(): the resources belong to the parent
    case 4:    // the process is ending
    case 709:  // the primary context was reset
      return true;
    default:
      return false;
  }
}

}  // namespace stillmap
