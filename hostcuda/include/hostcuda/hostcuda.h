/* hostcuda's own switches: what a test asks of the driver that a GPU could not give it.
 *
 * The CUDA driver API itself is <cuda.h>; hostcuda exports it under the usual names. Everything in
 * this file is extra. A program that wants it looks the symbols up with dlsym() in the libcuda.so.1
 * it loaded, so that the same binary runs on a real driver, where they are absent.
 *
 * Thread-safe unless said. Nothing here counts as a driver call, fails by injection, or needs
 * cuInit. Every function returns a CUresult. docs/hostcuda.md
 */
#ifndef HOSTCUDA_HOSTCUDA_H_
#define HOSTCUDA_HOSTCUDA_H_

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The machine being simulated ------------------------------------------------------------ */

/* Forgets everything (contexts, memory, streams, faults, counters) and starts again as the machine
 * `config` describes, before cuInit. `config` is a comma-separated list, the same as in the
 * environment variable HOSTCUDA, which configures the first machine of a process:
 *
 *   profile=h200|a100|multi:N|wsl2|mig|vgpu-no-vmm|old-driver-450   (default h200)
 *   memory=SIZE          device memory, e.g. 80G (default: the profile's)
 *   backed | lazy        real bytes (default); lazy: host memory only for what is touched
 *   unbacked             only the books
 *   lenient | strict     strict (default): a fence violation is error 700, sticky, and recorded
 *   schedule=threads     streams run at once, each on a thread of its own (default)
 *   schedule=jitter:SEED the same, each operation delayed by up to jitter_us (default 200)
 *   schedule=seeded:SEED nothing runs until somebody waits or queries; then in an order drawn from
 *                        SEED. Reproducible for a program with one host thread.
 *   mappings=N           ceiling of accessible mappings (default: the profile's). Backed, never
 *                        more than this process can hold: hostcuda_config() tells
 *   keep=SIZE            released pages that stay present, for each device (default: an eighth of
 *                        the host's memory)
 *   peers=all|none       whether the devices reach each other's memory (default all)
 *   costs=FILE           cost table (see hostcuda_modelled_ns)
 *
 * NULL or "" means the environment's. Errors: INVALID_VALUE with the reason on stderr when the
 * string is not understood; nothing changes then.
 * Requires: no other thread is inside the driver. */
CUresult hostcuda_reset(const char *config);

/* The effective configuration as one string of the form above. Valid until the next reset. */
CUresult hostcuda_config(const char **out);

/* Takes `bytes` of a device's memory away, as another process on the GPU would; 0 gives it back. */
CUresult hostcuda_occupy(CUdevice device, size_t bytes);

/* ---- Counting ------------------------------------------------------------------------------- */

/* Calls of the driver function `name` ("cuMemMap"; suffixes _v2, _ptsz are ignored), NULL: of all.
 */
CUresult hostcuda_calls(const char *name, uint64_t *out);

typedef struct hostcuda_counters {
  uint64_t calls;      /* all driver calls                                            */
  uint64_t bytes_htod; /* copied host to device                                       */
  uint64_t bytes_dtoh;
  uint64_t bytes_dtod;     /* copied device to device: what growing by copying costs      */
  uint64_t bytes_set;      /* written by memset                                           */
  uint64_t physical_bytes; /* device memory in use now                                    */
  uint64_t physical_peak;  /* most in use at once since the reset                         */
  uint64_t live_handles;   /* physical allocations not yet gone (released, unmapped, ...) */
  uint64_t live_mappings;
  uint64_t live_reservations;
  uint64_t live_streams; /* created and not destroyed; default streams do not count     */
  uint64_t live_events;
  uint64_t live_contexts;
  uint64_t violations;       /* see hostcuda_violation                                      */
  uint64_t first_touch_ns;   /* host time spent making pages present and zero               */
  uint64_t live_host_ranges; /* pinned host memory, allocated or registered             */
} hostcuda_counters;

CUresult hostcuda_get_counters(hostcuda_counters *out);

/* Sum over all calls of what the cost table says they would have taken on a GPU. 0 without one.
 * The table is text: a line `cuMemMap <fixed_ns> <ns_per_MiB>` per function, # comments. */
CUresult hostcuda_modelled_ns(uint64_t *out);

/* Calls cb(name, calls, user) for every driver function called at least once. */
CUresult hostcuda_each_call(void (*cb)(const char *name, uint64_t calls, void *user), void *user);

/* ---- Failing on purpose --------------------------------------------------------------------- */

/* The nth next call (1 = the very next) of `name` (NULL: of any function) from the calling thread
 * or any other returns `code` and does nothing else. One rule at a time per name; n = 0 removes
 * it. A rule that has fired is gone. cuGetErrorName, cuGetErrorString and cuGetProcAddress never
 * fail. */
CUresult hostcuda_fail(const char *name, uint64_t n, CUresult code);

/* As above, and every later call of `name` too, until removed. */
CUresult hostcuda_fail_from(const char *name, uint64_t n, CUresult code);

/* Calls cb(user) on the calling thread just before the nth next call of `name` does anything: what
 * another thread could have done in between, at the one moment that matters. It may call the
 * driver. The same rule as above: one at a time per name. */
CUresult hostcuda_before(const char *name, uint64_t n, void (*cb)(void *user), void *user);

/* How many rules have fired since the last reset of the count (reading resets it). */
CUresult hostcuda_faults_fired(uint64_t *out);

/* ---- Host kernels --------------------------------------------------------------------------- */

/* There is no PTX interpreter. A kernel is a host function registered under the name of its PTX
 * entry: cuModuleLoadData* reads the `.entry` names of any PTX text given to it,
 * cuModuleGetFunction finds the registered function, cuLaunchKernel queues it with its parameter
 * values copied. `params[i]` points at the i-th parameter as in cuLaunchKernel; `param_bytes` gives
 * their sizes. */
typedef struct hostcuda_launch {
  unsigned grid[3];
  unsigned block[3];
  void **params;
} hostcuda_launch;
typedef void (*hostcuda_kernel)(const hostcuda_launch *launch);
CUresult hostcuda_register_kernel(const char *entry, hostcuda_kernel fn, unsigned param_count,
                                  const size_t *param_bytes);

/* Only inside a host kernel: the host address of `bytes` at device address `at`, if all of it is
 * mapped and accessible to the kernel's device. Otherwise NULL, and the context is broken (700),
 * sticky, as on a GPU; the kernel should return. The oracle sees the access. Without `write` the
 * address is for reading only, and may be another than `at`. */
void *hostcuda_access(CUdeviceptr at, size_t bytes, int write);

/* The same, declared at launch time for the next cuLaunchKernel on `stream`, so that the oracle
 * knows the range while the kernel is still queued. Up to 64 ranges per launch. */
CUresult hostcuda_declare(CUstream stream, CUdeviceptr at, size_t bytes, int write);

/* ---- The oracle ----------------------------------------------------------------------------- */

typedef enum hostcuda_violation_kind {
  HOSTCUDA_USE_AFTER_UNMAP = 1, /* unmapped (or access taken) under unfinished work             */
  HOSTCUDA_USE_AFTER_FREE = 2,  /* cuMemFree under unfinished work of a non-blocking kind       */
  HOSTCUDA_UNORDERED_ALIAS = 3, /* two unordered accesses, one a write, to the same physical
                                   bytes through two different mappings                         */
  HOSTCUDA_ACCESS_FAULT = 4     /* work touched an address not mapped or not accessible         */
} hostcuda_violation_kind;

typedef struct hostcuda_violation {
  hostcuda_violation_kind kind;
  CUdeviceptr at;
  size_t bytes;
  char first[512];  /* what was queued, and where from (symbolised call site, best effort) */
  char second[512]; /* what broke it, and where from                                     */
} hostcuda_violation;

/* The index-th violation since the reset (0 = first, the first 64 are kept); NOT_FOUND past the
 * end. */
CUresult hostcuda_get_violation(uint64_t index, hostcuda_violation *out);

/* ---- Streams -------------------------------------------------------------------------------- */

/* Holds a stream: nothing queued on it starts until released. For tests that need work pending. */
CUresult hostcuda_hold(CUstream stream);
CUresult hostcuda_release(CUstream stream);

#ifdef __cplusplus
}
#endif
#endif /* HOSTCUDA_HOSTCUDA_H_ */
