/* The C functions that PyTorch loads with torch.cuda.memory.CUDAPluggableAllocator(path,
 * "stillmap_malloc", "stillmap_free"): one caching_allocator for each device, created by the first
 * request. docs/torch_plugin.md
 *
 * Plain C without a CUDA header: a stream is a cudaStream_t or CUstream.
 * Contexts: no context has to be current; the current context does not change.
 * Threads:  safe. Calls for different streams do not wait for each other.
 * Stream:   as in PyTorch: a freed block is reusable on its stream at once.
 * Fork:     in a child of a process that used the library, allocation fails and free does nothing.
 * Exit:     the library releases nothing at exit, because the driver may be unloaded before the
 *           program ends. Calls that late fail, but do not crash. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
#include <functional>
#include <utility>
#endif

#if defined(__GNUC__)
#define STILLMAP_TORCH_API __attribute__((visibility("default")))
#else
#define STILLMAP_TORCH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Returns memory for work queued on `stream` from now on; NULL for 0 bytes.
 * Errors: throws std::runtime_error, which PyTorch turns into Python's RuntimeError. (PyTorch does
 *         not check for NULL: the next kernel would write to address 0.) The message of an
 *         out-of-memory failure begins with "CUDA out of memory.", for which retry loops look. Where
 *         the host has no memory for a message, std::bad_alloc, which Python calls MemoryError.
 * Cost:   no driver call while free memory fits; the first call for a device opens it. */
STILLMAP_TORCH_API void *stillmap_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* The same for callers in C: returns NULL on failure; stillmap_last_error() has the reason. */
STILLMAP_TORCH_API void *stillmap_try_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* Frees a block. `stream` is the stream of its last use. A pointer that is not a block is left alone
 * and reported on stderr. */
STILLMAP_TORCH_API void stillmap_free(void *block, ssize_t size, int device,
                                      struct CUstream_st *stream);

/* The functions below that PyTorch can be given besides malloc and free: a line for each, with the
 * method of PyTorch's allocator object, a space, and the name of our function. Static text. */
STILLMAP_TORCH_API const char *stillmap_hooks(void);

/* For set_record_stream_fn: Tensor.record_stream. */
STILLMAP_TORCH_API void stillmap_record_stream(void *block, struct CUstream_st *stream);

/* For set_reset_fn: torch.cuda.empty_cache. Applies to all devices. */
STILLMAP_TORCH_API void stillmap_empty_cache(void);

/* For set_memory_fraction_fn: torch.cuda.set_per_process_memory_fraction. It limits the device's heap
 * where the fraction is less than the limit that the settings state. */
STILLMAP_TORCH_API void stillmap_set_memory_fraction(double fraction, int device);

/* Writes the statistics of a device as one JSON object; PyTorch has none for a pluggable allocator.
 * Like snprintf, it writes at most `room` bytes including the terminating 0 and returns the length of
 * the full text; 0 if the device was not used so far, or the host has no memory left. */
STILLMAP_TORCH_API size_t stillmap_stats(int device, char *json, size_t room);

/* Returns the reason of this thread's last failed call; "" if none failed. Valid until the next
 * failure. */
STILLMAP_TORCH_API const char *stillmap_last_error(void);

#ifdef __cplusplus

/* CUDA graphs and MemPools. The arguments are PyTorch's own types, a c10::cuda::MempoolId_t and a
 * std::function, so the caller has to use the same C++ library (libstdc++) as PyTorch's wheels.
 * docs/pytorch.md#cuda-graphs */

/* For set_begin_allocate_to_pool: requests for the streams for which `takes` says yes come from the
 * pool from now on. Its pages stay mapped while it exists, and serve nothing else. A stream stays
 * with the pool until the end, also for requests of other threads.
 * Errors: throws std::runtime_error; std::bad_alloc where the host has no memory for a message. */
STILLMAP_TORCH_API void stillmap_begin_allocate_to_pool(
    int device, std::pair<unsigned long long, unsigned long long> pool,
    std::function<bool(struct CUstream_st *)> takes);

/* For set_end_allocate_to_pool_fn. Errors are reported on stderr. */
STILLMAP_TORCH_API void stillmap_end_allocate_to_pool(
    int device, std::pair<unsigned long long, unsigned long long> pool);

/* For set_release_pool: removes the reference of one begin. After the last one, free pages of the
 * pool become ordinary pages once the work has completed that is queued on the default stream and
 * on the streams that allocated memory. A graph that was launched on another stream must have
 * completed. Errors are reported on stderr. */
STILLMAP_TORCH_API void stillmap_release_pool(
    int device, std::pair<unsigned long long, unsigned long long> pool);
}
#endif
