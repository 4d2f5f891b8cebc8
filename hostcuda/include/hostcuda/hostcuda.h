/* Test interface of hostcuda: configuration, counters, fault injection, host kernels, violations.
 *
 * hostcuda exports the CUDA driver API of <cuda.h> under its usual names. The functions in this
 * file are additional. A program looks them up with dlsym() in the libcuda.so.1 that it loaded, so
 * the same binary also runs on a real driver, which does not have these symbols.
 *
 * All functions are thread-safe unless stated otherwise and return a CUresult. They are not counted
 * as driver calls, are not subject to fault injection, and do not require cuInit.
 * hostcuda/README.md
 */
#ifndef HOSTCUDA_HOSTCUDA_H_
#define HOSTCUDA_HOSTCUDA_H_

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configuration -------------------------------------------------------------------------- */

/* Discards all state (contexts, memory, streams, faults, counters) and starts the machine that
 * `config` describes, in the state before cuInit. `config` is a comma-separated list with the
 * syntax of the environment variable HOSTCUDA, which configures the first machine of a process:
 *
 *   profile=h200|a100|multi:N|wsl2|mig|vgpu-no-vmm|old-driver-450|integrated   (default h200)
 *   memory=SIZE          device memory, e.g. 80G (default: the profile's)
 *   backed | lazy        device memory has bytes (backed, the default); lazy: host memory is
 *                        allocated on first touch
 *   unbacked             device memory has addresses and properties, but no bytes
 *   lenient | strict     strict (default): a violation is recorded and breaks the context with
 *                        the sticky error 700; lenient: it is recorded only
 *   schedule=threads     each stream runs on its own thread (default)
 *   schedule=jitter:SEED as threads, with each operation delayed by up to jitter_us (default 200)
 *   schedule=seeded:SEED no work runs until a thread waits or queries; then work runs in an order
 *                        drawn from SEED. Reproducible for a program with one host thread.
 *   mappings=N           maximum number of accessible mappings (default: the profile's). With
 *                        backed memory it is limited to what the process can hold; call
 *                        hostcuda_config() for the effective value.
 *   keep=SIZE            bytes of released pages kept resident for each device (default: an eighth
 *                        of the host's memory)
 *   peers=all|none       whether the devices can access each other's memory (default all)
 *   costs=FILE           cost table (see hostcuda_modelled_ns)
 *   kernels=refuse|skip  kernels without a registered host function are not found (refuse, the
 *                        default), or accepted and not run (skip): those of cubins and fat
 *                        binaries too, under any name
 *   vmm_in_capture=refuse|allow
 *                        whether cuMemCreate, cuMemMap, cuMemUnmap and cuMemSetAccess are unsafe
 *                        calls during a global capture (refuse, the default), or are allowed, as
 *                        PyTorch's expandable segments need for CUDA graphs
 *
 *   machine=NAME         the processes that give one name share its devices: together they allocate no
 *                        more than the devices' memory (default: each process has its own)
 *
 * NULL or "" selects the configuration of the environment variable.
 * Requires: no other thread is inside the driver.
 * Errors:   INVALID_VALUE when the string is malformed; the reason is printed on stderr and
 *           nothing changes. */
CUresult hostcuda_reset(const char *config);

/* Returns the effective configuration in the syntax above. Valid until the next reset. */
CUresult hostcuda_config(const char **out);

/* Makes `bytes` of a device's memory unavailable, as another process on the GPU would. 0 makes all
 * memory available again. */
CUresult hostcuda_occupy(CUdevice device, size_t bytes);

/* What a management tool asks about a device without using it. */
typedef struct hostcuda_device {
  char name[96];
  unsigned char uuid[16];
  int driver_version; /* as cuDriverGetVersion returns it              */
  int compute_major;
  int compute_minor;
  int pci_bus; /* domain, slot and function are 0              */
  int pci_device_id;
  int pci_subsystem_id;
  size_t total_bytes;
  size_t used_bytes;     /* by this process                              */
  size_t occupied_bytes; /* by others: hostcuda_occupy, machine=NAME     */
  uint64_t contexts;     /* contexts of this process on the device       */
} hostcuda_device;

/* Describes a device. Creates no context. In a forked child of a process that has called cuInit,
 * the description is that of an unused device.
 * Errors: INVALID_DEVICE if there is no such device. */
CUresult hostcuda_get_device(CUdevice device, hostcuda_device *out);

/* Calls cb(process, used_bytes, user) for each process with a context on the device: this one, and with
 * machine=NAME all others of the machine, even if this one takes no part.
 * Errors: INVALID_DEVICE if there is no such device. */
CUresult hostcuda_each_process(CUdevice device,
                               void (*cb)(unsigned process, size_t used_bytes, void *user),
                               void *user);

/* ---- Counting ------------------------------------------------------------------------------- */

/* Number of calls of the driver function `name` ("cuMemMap"; suffixes such as _v2 and _ptsz are
 * ignored). NULL: of all functions. */
CUresult hostcuda_calls(const char *name, uint64_t *out);

typedef struct hostcuda_counters {
  uint64_t calls;      /* all driver calls                                            */
  uint64_t bytes_htod; /* copied host to device                                       */
  uint64_t bytes_dtoh;
  uint64_t bytes_dtod;     /* copied device to device                                     */
  uint64_t bytes_set;      /* written by memset                                           */
  uint64_t physical_bytes; /* device memory in use now                                    */
  uint64_t physical_peak;  /* maximum in use since the reset                              */
  uint64_t live_handles;   /* physical allocations still held or mapped               */
  uint64_t live_mappings;
  uint64_t live_reservations;
  uint64_t live_streams; /* created and not destroyed; default streams do not count     */
  uint64_t live_events;
  uint64_t live_contexts;
  uint64_t violations;       /* see hostcuda_violation                                      */
  uint64_t first_touch_ns;   /* host time spent populating and zeroing pages               */
  uint64_t live_host_ranges; /* pinned host memory, allocated or registered             */
  uint64_t skipped_launches; /* kernels that were due and not run, with kernels=skip        */
} hostcuda_counters;

CUresult hostcuda_get_counters(hostcuda_counters *out);

/* Modelled time of all calls in nanoseconds, according to the cost table; 0 without a table. The
 * table is text: one line `cuMemMap <fixed_ns> <ns_per_MiB>` per function; # starts a comment. */
CUresult hostcuda_modelled_ns(uint64_t *out);

/* Calls cb(name, calls, user) for every driver function called at least once. */
CUresult hostcuda_each_call(void (*cb)(const char *name, uint64_t calls, void *user), void *user);

/* ---- Fault injection ------------------------------------------------------------------------ */

/* The nth next call (1 = the next) of `name` (NULL: of any function), from any thread, returns
 * `code` and does nothing else. There is one rule per name; a new rule replaces it, and n = 0
 * removes it. The rule is removed after it has fired. cuGetErrorName, cuGetErrorString and
 * cuGetProcAddress never fail. */
CUresult hostcuda_fail(const char *name, uint64_t n, CUresult code);

/* As hostcuda_fail, but every later call of `name` fails too, until the rule is removed. */
CUresult hostcuda_fail_from(const char *name, uint64_t n, CUresult code);

/* Calls cb(user) on the calling thread immediately before the nth next call of `name` runs. Tests
 * use it to interleave an operation at a chosen point. The callback may call the driver. It shares
 * the one rule per name with hostcuda_fail. */
CUresult hostcuda_before(const char *name, uint64_t n, void (*cb)(void *user), void *user);

/* Returns the number of rules that have fired since the last call, and resets the count. */
CUresult hostcuda_faults_fired(uint64_t *out);

/* ---- Host kernels --------------------------------------------------------------------------- */

/* There is no PTX interpreter. A kernel is a host function registered under the name of its PTX
 * entry: cuModuleLoadData* reads the `.entry` names of the PTX text, cuModuleGetFunction finds the
 * registered function, and cuLaunchKernel queues it with a copy of its parameters. Libraries
 * (cuLibraryLoadData) work in the same way. `params[i]`
 * points at the i-th parameter as in cuLaunchKernel; `param_bytes` gives the parameter sizes. */
typedef struct hostcuda_launch {
  unsigned grid[3];
  unsigned block[3];
  void **params;
} hostcuda_launch;
typedef void (*hostcuda_kernel)(const hostcuda_launch *launch);
CUresult hostcuda_register_kernel(const char *entry, hostcuda_kernel fn, unsigned param_count,
                                  const size_t *param_bytes);

/* As hostcuda_register_kernel, for one function or CUkernel in place of all of that name, until its
 * module or library is unloaded.
 * Requires: no launch of it at the same time.
 * Errors:   INVALID_VALUE; INVALID_HANDLE. */
CUresult hostcuda_register_function(CUfunction function, hostcuda_kernel fn, unsigned param_count,
                                    const size_t *param_bytes);

/* ---- Host kernels that are written for one thread ------------------------------------------- */

/* Where a thread is in its grid: threadIdx, blockIdx, blockDim and gridDim of CUDA C++. */
typedef struct hostcuda_thread {
  unsigned thread_idx[3];
  unsigned block_idx[3];
  unsigned block_dim[3];
  unsigned grid_dim[3];
  unsigned shared_bytes; /* dynamic shared memory of a block, as given to the launch */
} hostcuda_thread;

/* Calls body(launch->params) once for each thread of the grid, block after block, all on the calling
 * thread. A thread of a block runs until it returns or waits in hostcuda_syncthreads. Each has a
 * stack of 1 MiB. One grid of the process runs at a time, so static variables can be the shared
 * memory of a block.
 * Requires: the caller is a host kernel, and `launch` is its argument.
 * Errors:   NOT_PERMITTED outside of a host kernel or within `body`; OUT_OF_MEMORY when the host has
 *           no memory for the stacks of waiting threads, which also fails the launch with
 *           LAUNCH_FAILED. An exception of `body` leaves this function too, and threads that wait
 *           then are not resumed. */
CUresult hostcuda_run_threads(const hostcuda_launch *launch, void (*body)(void **params));

/* The calling thread of a grid. Valid until `body` returns. NULL outside of a `body`. */
const hostcuda_thread *hostcuda_this_thread(void);

/* As __syncthreads and its variants: returns when each thread of the block has called it or has
 * returned. `nonzero` (or NULL) receives for how many of those that called it `predicate` was not 0,
 * `threads` (or NULL) how many there were.
 * Errors: NOT_PERMITTED outside of a `body`. */
CUresult hostcuda_syncthreads(int predicate, unsigned *nonzero, unsigned *threads);

/* As printf of device code, which compilers turn into a call of vprintf: `arguments` are the values
 * one after the other, each at its natural alignment, floating-point numbers as doubles. Prints on
 * stdout at once. `*` for a width or precision, and %n, are printed as they stand.
 * Returns the number of arguments that were printed. */
int hostcuda_printf(const char *format, const void *arguments);

/* Returns the host address of `bytes` at device address `at`, if all of it is mapped and accessible
 * to the kernel's device. Otherwise returns NULL and breaks the context with the sticky error 700,
 * as a GPU does; the kernel should then return. The oracle records the access. Without `write` the
 * result is read-only memory and may differ from `at`.
 * Requires: the caller is a host kernel. */
void *hostcuda_access(CUdeviceptr at, size_t bytes, int write);

/* Declares an access of the next cuLaunchKernel on `stream`, so that the oracle knows the range
 * while the kernel is still queued. Up to 64 ranges per launch. */
CUresult hostcuda_declare(CUstream stream, CUdeviceptr at, size_t bytes, int write);

/* ---- The oracle ----------------------------------------------------------------------------- */

typedef enum hostcuda_violation_kind {
  HOSTCUDA_USE_AFTER_UNMAP = 1, /* unmapped, or access removed, during unfinished work          */
  HOSTCUDA_USE_AFTER_FREE = 2,  /* cuMemFree during unfinished work of a non-blocking stream    */
  HOSTCUDA_UNORDERED_ALIAS = 3, /* two unordered accesses, at least one a write, to the same
                                   physical bytes through two mappings                          */
  HOSTCUDA_ACCESS_FAULT = 4     /* work accessed an address that is unmapped or inaccessible    */
} hostcuda_violation_kind;

typedef struct hostcuda_violation {
  hostcuda_violation_kind kind;
  CUdeviceptr at;
  size_t bytes;
  char first[512];  /* the queued work and its call site (symbolised, best effort) */
  char second[512]; /* the conflicting call and its call site                     */
} hostcuda_violation;

/* Returns the index-th violation since the reset (0 = the first; the first 64 are kept).
 * Errors: NOT_FOUND past the end. */
CUresult hostcuda_get_violation(uint64_t index, hostcuda_violation *out);

/* ---- Streams -------------------------------------------------------------------------------- */

/* Holds a stream: no work queued on it starts until hostcuda_release. For tests that need pending
 * work. A call that waits for the stream returns after the release only, and so does an
 * asynchronous copy to pageable memory: such a test needs pinned memory. */
CUresult hostcuda_hold(CUstream stream);
CUresult hostcuda_release(CUstream stream);

#ifdef __cplusplus
}
#endif
#endif /* HOSTCUDA_HOSTCUDA_H_ */
