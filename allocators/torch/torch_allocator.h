/* What PyTorch loads with torch.cuda.memory.CUDAPluggableAllocator(path, "stillmap_malloc",
 * "stillmap_free"): a caching_allocator for each device, made when it is first asked for memory.
 * docs/pytorch.md
 *
 * Plain C, no CUDA header: a stream is what cudaStream_t and CUstream are.
 * Contexts: none has to be current; what was current stays so.
 * Threads:  safe, all of it; those of different streams do not wait for each other.
 * Streams:  as everywhere in PyTorch: a block freed is reusable on its stream at once.
 * Fork:     a child of a process that used it gets no memory, and frees nothing.
 * Exit:     nothing is given back then: the driver may be gone before the program is. Whatever is
 *           called that late is answered, by a refusal at worst. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#if defined(__GNUC__)
#define STILLMAP_TORCH_API __attribute__((visibility("default")))
#else
#define STILLMAP_TORCH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Memory for work queued on `stream` from now on; NULL for no bytes.
 * A failure is thrown, as a std::runtime_error: PyTorch takes a NULL for an address and lets the
 * next kernel write there, and turns an exception into Python's RuntimeError. What is out of memory
 * begins with "CUDA out of memory.", which is what programs that try again look for.
 * Cost: none where memory fits; the first call for a device opens it. */
STILLMAP_TORCH_API void *stillmap_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* The same for callers in C: NULL for a failure, and stillmap_last_error() says what it was. */
STILLMAP_TORCH_API void *stillmap_try_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* Takes a block back; `stream` is the last it was used on. What is no block of ours stays as it is,
 * and is said on stderr, since nobody can be told. */
STILLMAP_TORCH_API void stillmap_free(void *block, ssize_t size, int device,
                                      struct CUstream_st *stream);

/* For set_record_stream_fn: Tensor.record_stream. */
STILLMAP_TORCH_API void stillmap_record_stream(void *block, struct CUstream_st *stream);

/* For set_reset_fn: torch.cuda.empty_cache. Of all devices. */
STILLMAP_TORCH_API void stillmap_empty_cache(void);

/* For set_memory_fraction_fn: torch.cuda.set_per_process_memory_fraction. */
STILLMAP_TORCH_API void stillmap_set_memory_fraction(double fraction, int device);

/* PyTorch has no figures of an allocator that is plugged in, so here they are, as one JSON object.
 * Like snprintf: writes at most `room` bytes with the 0 at the end, returns how long the text is.
 * 0: nothing was asked of the device so far. */
STILLMAP_TORCH_API size_t stillmap_stats(int device, char *json, size_t room);

/* Why the last call of this thread that failed did; "" if none has. Valid until the next. */
STILLMAP_TORCH_API const char *stillmap_last_error(void);

#ifdef __cplusplus
}
#endif
