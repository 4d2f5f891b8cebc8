// The C API of Stillmap: C11 and C++, without a CUDA header. docs/c_api.md
//
// Handles:   a handle is opaque and never dereferenced: NULL, a destroyed handle, one of another type and any other
//            value are refused with STILLMAP_INVALID_ARGUMENT. destroy, close and release ignore NULL.
// Errors:    a function that can fail returns a stillmap_status, and stillmap_error_last() describes the failure of
//            this thread. A failed call leaves its object as it was. Functions that return a value return 0 or NULL.
// Structs:   begin with struct_size, which the caller sets to sizeof; a zero in any other member of an options struct
//            is its default, and NULL in the place of options are all defaults. A smaller struct is accepted: what it
//            lacks is zero. A larger one is accepted if what this library does not know of it is zero.
// Strings:   UTF-8 or plain bytes, terminated by 0; the library copies them. Texts in a `char **` are the caller's:
//            stillmap_string_free().
// Streams:   a CUstream or cudaStream_t; NULL is the legacy default stream.
// Contexts:  no context has to be current; the current context does not change.
// Threads:   functions of devices, allocators, pools, quotas, suspenders, snapshots and control servers may be called
//            from any thread at once; one buffer, vector or restored memory by one thread at a time. No call may use a
//            handle while another thread destroys it.
// Callbacks: must not throw, must not longjmp, and must not destroy the object that calls them.
// Fork:      in a child of a process that has used the library, every call that can fail does, with
//            STILLMAP_NOT_SUPPORTED; destroying does nothing.
// Exit:      the library releases nothing at exit. Calls that late fail, but do not crash.
#ifndef STILLMAP_C_API_H
#define STILLMAP_C_API_H

#include <stddef.h>
#include <stdint.h>

// Rises with each addition. A program that was compiled with version n runs with a library of version n or later.
#define STILLMAP_C_API_VERSION 1

#if defined(__GNUC__)
#define STILLMAP_C_API __attribute__((visibility("default")))
#else
#define STILLMAP_C_API
#endif
#ifdef __cplusplus
#define STILLMAP_C_NOEXCEPT noexcept
extern "C" {
#else
#define STILLMAP_C_NOEXCEPT
#endif

struct CUstream_st;
typedef struct CUstream_st *stillmap_stream;
// The calling thread's default stream: another stream in each thread.
#define STILLMAP_STREAM_PER_THREAD ((stillmap_stream)0x2)

typedef struct stillmap_device stillmap_device;
typedef struct stillmap_buffer stillmap_buffer;
typedef struct stillmap_vector stillmap_vector;
typedef struct stillmap_allocator stillmap_allocator;
typedef struct stillmap_quota stillmap_quota;
typedef struct stillmap_suspender stillmap_suspender;
typedef struct stillmap_restored stillmap_restored;
typedef struct stillmap_control stillmap_control;
typedef struct stillmap_stop stillmap_stop;

// ---- library and errors ------------------------------------------------------------------------

typedef enum stillmap_status {
  STILLMAP_OK = 0,
  STILLMAP_OUT_OF_MEMORY = 1,            // of the device, or of a limit: free memory, retry
  STILLMAP_ADDRESS_SPACE_EXHAUSTED = 2,  // no addresses of that size, or too many mappings
  STILLMAP_INVALID_ARGUMENT = 3,         // the call is wrong
  STILLMAP_NOT_SUPPORTED = 4,            // this driver, device or library cannot do it
  STILLMAP_BUSY = 5,                     // device work or another owner still needs it
  STILLMAP_DEVICE_LOST = 6,              // the context is broken for good
  STILLMAP_CORRUPT = 7,                  // data is inconsistent: do not use it
  STILLMAP_CANCELED = 8,                 // a callback or another process ended it
  STILLMAP_OUT_OF_HOST_MEMORY = 9,
  STILLMAP_SYSTEM_ERROR = 10,  // of the operating system: stillmap_error.system_code
  STILLMAP_FAILED = 11         // of the driver, none of these: stillmap_error.driver_code
} stillmap_status;

// The unit of an error's value and limit.
typedef enum stillmap_unit {
  STILLMAP_UNIT_NONE = 0,  // an index, ordinal, count or id
  STILLMAP_UNIT_BYTES = 1,
  STILLMAP_UNIT_PAGES = 2,
  STILLMAP_UNIT_ADDRESS = 3,
  STILLMAP_UNIT_MILLISECONDS = 4,
  STILLMAP_UNIT_ITEMS = 5
} stillmap_unit;

// Strings are never NULL; an empty one means "not given". They are valid until the next failure of the thread.
typedef struct stillmap_error {
  size_t struct_size;
  int32_t status;         // stillmap_status
  int32_t unit;           // stillmap_unit, of value and limit
  int32_t driver_code;    // the CUresult; 0: not the driver's error
  int32_t system_code;    // the errno; 0: not the system's error
  uint64_t value;         // the number requested
  uint64_t limit;         // the number available or allowed; 0: none is known
  const char *function;   // the function of this header: "stillmap_buffer_resize"
  const char *operation;  // what failed: the same, or the driver's: "cuMemCreate"
  const char *reason;     // one clause: "the size exceeds the reservation"
  const char *subject;    // the path, tag, socket or peer concerned
  const char *message;    // all of it in one line
  const char *advice;     // what to do
} stillmap_error;

typedef void (*stillmap_error_callback)(const stillmap_error *error, void *user);

// STILLMAP_C_API_VERSION of the library that runs.
STILLMAP_C_API uint32_t stillmap_api_version(void) STILLMAP_C_NOEXCEPT;
// The version of Stillmap: "0.1.0".
STILLMAP_C_API const char *stillmap_version(void) STILLMAP_C_NOEXCEPT;
// NULL is ignored.
STILLMAP_C_API void stillmap_string_free(char *text) STILLMAP_C_NOEXCEPT;

// Describes the latest failure of the calling thread; STILLMAP_OK where there is none. A success keeps it.
// Takes no host memory. On failure (NULL, struct_size) the latest failure stays as it was.
STILLMAP_C_API stillmap_status stillmap_error_last(stillmap_error *error) STILLMAP_C_NOEXCEPT;
// Its message; "" where there is none.
STILLMAP_C_API const char *stillmap_error_message(void) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API void stillmap_error_clear(void) STILLMAP_C_NOEXCEPT;
// "out of memory"; "unknown" of another number.
STILLMAP_C_API const char *stillmap_status_name(int status) STILLMAP_C_NOEXCEPT;

// Failures without a caller to return to, of destructors and background threads, are counted and passed to the
// callback, on any thread. NULL: they are counted only. The error is valid during the call.
STILLMAP_C_API stillmap_status stillmap_background_error_set_callback(
    stillmap_error_callback callback, void *user) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API uint64_t stillmap_background_error_count(void) STILLMAP_C_NOEXCEPT;

// ---- devices -----------------------------------------------------------------------------------

typedef struct stillmap_device_info {
  size_t struct_size;
  int32_t ordinal;
  uint32_t vmm;  // 1: pages can be mapped. The next ones likewise: 0 or 1
  uint32_t posix_fd_export;
  uint32_t fabric_export;
  uint32_t memory_pools;
  uint32_t integrated;  // shares the host's memory
  uint64_t total_memory_bytes;
  uint64_t page_bytes;  // the smallest unit that is mapped
  uint64_t recommended_page_bytes;
  uint64_t largest_reservation_bytes;
  uint64_t mapping_ceiling;  // most mappings at once
  uint8_t uuid[16];
  char name[256];
} stillmap_device_info;

STILLMAP_C_API stillmap_status stillmap_device_count(int *count) STILLMAP_C_NOEXCEPT;
// Opens a device of the process's driver, which is loaded by the first call: STILLMAP_DRIVER=cuda|host|PATH.
// Cost: about twenty driver calls and one page the first time.
STILLMAP_C_API stillmap_status stillmap_device_open(int ordinal,
                                                    stillmap_device **device) STILLMAP_C_NOEXCEPT;
// The device stays open while buffers, allocators and others of it exist.
STILLMAP_C_API stillmap_status stillmap_device_close(stillmap_device *device) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status
stillmap_device_get_info(stillmap_device *device, stillmap_device_info *info) STILLMAP_C_NOEXCEPT;
// Bytes of the device that are free now, and all of it.
STILLMAP_C_API stillmap_status stillmap_device_get_memory(
    stillmap_device *device, uint64_t *free_bytes, uint64_t *total_bytes) STILLMAP_C_NOEXCEPT;
// The tags of this process's memory on the device, as JSON: an array of objects with tag, blocks, reserved_bytes,
// mapped_bytes, suspended_bytes.
STILLMAP_C_API stillmap_status stillmap_device_get_tags(stillmap_device *device,
                                                        char **json) STILLMAP_C_NOEXCEPT;

// How other processes can import pages.
typedef enum stillmap_exportable {
  STILLMAP_EXPORTABLE_NONE = 0,
  STILLMAP_EXPORTABLE_POSIX_FD = 1,
  STILLMAP_EXPORTABLE_FABRIC = 2
} stillmap_exportable;

// ---- growable buffers --------------------------------------------------------------------------

typedef struct stillmap_buffer_options {
  size_t struct_size;
  size_t
      reserve_bytes;  // address space, which costs no memory; 0: as much as the device has memory
  const char *tag;    // the name of its group, for suspend and snapshot
  uint64_t hint;      // preferred address; 0: none
  const int *peer_devices;  // ordinals of devices that may access it, too
  size_t peer_device_count;
  size_t map_ahead_bytes;  // kept mapped beyond the size by a background thread
  uint32_t exportable;     // stillmap_exportable
  uint32_t reserved;       // 0
} stillmap_buffer_options;

typedef struct stillmap_buffer_info {
  size_t struct_size;
  void *address;
  size_t size;
  size_t capacity;        // mapped from the start without a gap
  size_t reserved_bytes;  // of address space
  size_t mapped_bytes;    // anywhere in it
  size_t page_bytes;
  uint64_t generation;   // rises whenever pages behind it change
  uint64_t relocations;  // times the address changed
  uint32_t in_place;     // 0: the device cannot map pages, and growing past the capacity copies
  uint32_t reserved;     // 0
} stillmap_buffer_info;

STILLMAP_C_API stillmap_status stillmap_buffer_create(stillmap_device *device,
                                                      const stillmap_buffer_options *options,
                                                      stillmap_buffer **buffer) STILLMAP_C_NOEXCEPT;
// Waits for the device's work, as cuMemFree does.
STILLMAP_C_API stillmap_status stillmap_buffer_destroy(stillmap_buffer *buffer) STILLMAP_C_NOEXCEPT;

// Changes the size. Growing maps what is missing, and new bytes are unspecified; shrinking keeps the pages. The
// address stays unless `bytes` exceeds the reservation. Without a stream the host waits where memory is reused; with
// one, that stream does: new bytes may then be used on it, and elsewhere once ordered after it.
// Errors: OUT_OF_MEMORY (value: bytes, limit: bytes that there were), ADDRESS_SPACE_EXHAUSTED, INVALID_ARGUMENT.
STILLMAP_C_API stillmap_status stillmap_buffer_resize(stillmap_buffer *buffer,
                                                      size_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_buffer_resize_on_stream(
    stillmap_buffer *buffer, size_t bytes, stillmap_stream stream) STILLMAP_C_NOEXCEPT;
// Makes the capacity at least `bytes`; the size stays.
STILLMAP_C_API stillmap_status stillmap_buffer_reserve(stillmap_buffer *buffer,
                                                       size_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_buffer_reserve_on_stream(
    stillmap_buffer *buffer, size_t bytes, stillmap_stream stream) STILLMAP_C_NOEXCEPT;
// Returns the pages past the size to the device's page pool. Waits for the device's work first.
STILLMAP_C_API stillmap_status stillmap_buffer_shrink_to_fit(stillmap_buffer *buffer)
    STILLMAP_C_NOEXCEPT;
// Maps, or unmaps, a range of the reservation whatever the size is: multiples of page_bytes.
STILLMAP_C_API stillmap_status stillmap_buffer_commit(stillmap_buffer *buffer, size_t offset,
                                                      size_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status
stillmap_buffer_commit_on_stream(stillmap_buffer *buffer, size_t offset, size_t bytes,
                                 stillmap_stream stream) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_buffer_decommit(stillmap_buffer *buffer, size_t offset,
                                                        size_t bytes) STILLMAP_C_NOEXCEPT;

// NULL, or 0, of an invalid handle.
STILLMAP_C_API void *stillmap_buffer_address(stillmap_buffer *buffer) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API size_t stillmap_buffer_size(stillmap_buffer *buffer) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API size_t stillmap_buffer_capacity(stillmap_buffer *buffer) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status
stillmap_buffer_get_info(stillmap_buffer *buffer, stillmap_buffer_info *info) STILLMAP_C_NOEXCEPT;

// Copy between host memory and the buffer, ordered on the stream; the host waits for the copy.
STILLMAP_C_API stillmap_status
stillmap_buffer_copy_from_host(stillmap_buffer *buffer, size_t offset, const void *from,
                               size_t bytes, stillmap_stream stream) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status
stillmap_buffer_copy_to_host(stillmap_buffer *buffer, size_t offset, void *to, size_t bytes,
                             stillmap_stream stream) STILLMAP_C_NOEXCEPT;

// A buffer of the same pages at other addresses, `times` in a row: twice makes a ring. Page multiples.
STILLMAP_C_API stillmap_status stillmap_buffer_alias(stillmap_buffer *buffer, size_t offset,
                                                     size_t bytes, size_t times,
                                                     stillmap_buffer **alias) STILLMAP_C_NOEXCEPT;
// A copy that shares every page until one of the two is about to write it: both are read-only where shared, and
// stillmap_buffer_make_writable() comes before a write. Waits for the device's work.
STILLMAP_C_API stillmap_status stillmap_buffer_fork(stillmap_buffer *buffer,
                                                    stillmap_buffer **copy) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_buffer_make_writable(stillmap_buffer *buffer, size_t offset,
                                                             size_t bytes, stillmap_stream stream)
    STILLMAP_C_NOEXCEPT;

// ---- vectors -----------------------------------------------------------------------------------

// Elements of one size in device memory. Positions and counts are in elements. All work is queued on the stream that
// the vector was created with: use the elements there, or after stillmap_vector_synchronize().
STILLMAP_C_API stillmap_status stillmap_vector_create(stillmap_device *device, size_t element_bytes,
                                                      const stillmap_buffer_options *options,
                                                      stillmap_stream stream,
                                                      stillmap_vector **vector) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_destroy(stillmap_vector *vector) STILLMAP_C_NOEXCEPT;
// Copies `count` elements from the host, which may reuse them on return; or from device memory.
STILLMAP_C_API stillmap_status stillmap_vector_append(stillmap_vector *vector, const void *elements,
                                                      size_t count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_append_from_device(stillmap_vector *vector,
                                                                  const void *elements,
                                                                  size_t count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_insert(stillmap_vector *vector, size_t position,
                                                      const void *elements,
                                                      size_t count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_erase(stillmap_vector *vector, size_t position,
                                                     size_t count) STILLMAP_C_NOEXCEPT;
// New elements are zero bytes.
STILLMAP_C_API stillmap_status stillmap_vector_resize(stillmap_vector *vector,
                                                      size_t count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_reserve(stillmap_vector *vector,
                                                       size_t count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_shrink_to_fit(stillmap_vector *vector)
    STILLMAP_C_NOEXCEPT;
STILLMAP_C_API size_t stillmap_vector_size(stillmap_vector *vector) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API size_t stillmap_vector_capacity(stillmap_vector *vector) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API void *stillmap_vector_data(stillmap_vector *vector) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_copy_from_host(stillmap_vector *vector,
                                                              size_t position, const void *elements,
                                                              size_t count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_vector_copy_to_host(stillmap_vector *vector,
                                                            size_t position, void *elements,
                                                            size_t count) STILLMAP_C_NOEXCEPT;
// Waits for the stream.
STILLMAP_C_API stillmap_status stillmap_vector_synchronize(stillmap_vector *vector)
    STILLMAP_C_NOEXCEPT;

// ---- admission: a limit that several processes share ---------------------------------------------

typedef struct stillmap_quota_options {
  size_t struct_size;
  uint64_t limit_bytes;    // of all participants; 0: that of the existing quota
  uint64_t minimum_bytes;  // granted whatever others hold
  uint64_t maximum_bytes;  // 0: none
  int32_t priority;        // served before those of lower priority
  uint32_t reserved;       // 0
  int64_t
      timeout_milliseconds;  // how long a request waits for others; 0: 10 s; negative: it does not wait
  stillmap_device *
      device;  // whose memory it divides: other users of the device count as well; NULL: only the limit
} stillmap_quota_options;

typedef struct stillmap_quota_stats {
  size_t struct_size;
  uint64_t limit_bytes;
  uint64_t reserved_bytes;  // by all participants
  uint64_t own_bytes;       // by this one
  uint64_t device_bytes;    // 0: no participant has named a device
  uint64_t outside_bytes;   // used by others than participants
  uint64_t revision;        // of the limit and all terms
  uint64_t participants;
  uint64_t waits;    // of this participant: requests that waited,
  uint64_t granted;  // that were granted then,
  uint64_t busy;     // that were not
} stillmap_quota_stats;

// Opens the quota `name`, a file name in /dev/shm or a path; creates it where a limit is given.
STILLMAP_C_API stillmap_status stillmap_quota_open(const char *name,
                                                   const stillmap_quota_options *options,
                                                   stillmap_quota **quota) STILLMAP_C_NOEXCEPT;
// Allocators that were created with it keep it.
STILLMAP_C_API stillmap_status stillmap_quota_close(stillmap_quota *quota) STILLMAP_C_NOEXCEPT;
// Deletes the file; participants keep what they have.
STILLMAP_C_API stillmap_status stillmap_quota_remove(const char *name) STILLMAP_C_NOEXCEPT;
// Starts a thread that answers when others need memory, or answers once, on this thread.
STILLMAP_C_API stillmap_status stillmap_quota_start_thread(stillmap_quota *quota)
    STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_quota_poll(stillmap_quota *quota,
                                                   uint64_t *released_bytes) STILLMAP_C_NOEXCEPT;
// For memory that is not Stillmap's: reserve it before it is allocated, release it after it is freed.
STILLMAP_C_API stillmap_status stillmap_quota_reserve(stillmap_quota *quota,
                                                      uint64_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_quota_release(stillmap_quota *quota,
                                                      uint64_t bytes) STILLMAP_C_NOEXCEPT;
// Sets the limit of all participants. *deferred (or NULL): 1 where more is held now.
STILLMAP_C_API stillmap_status stillmap_quota_set_limit(stillmap_quota *quota, uint64_t bytes,
                                                        int *deferred) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status
stillmap_quota_get_stats(stillmap_quota *quota, stillmap_quota_stats *stats) STILLMAP_C_NOEXCEPT;

// ---- caching allocator -------------------------------------------------------------------------

typedef enum stillmap_action {
  STILLMAP_ACTION_ALLOCATE = 0,
  STILLMAP_ACTION_FREE_REQUESTED = 1,
  STILLMAP_ACTION_FREE_COMPLETED = 2,
  STILLMAP_ACTION_PAGE_MAP = 3,
  STILLMAP_ACTION_PAGE_MOVE = 4,
  STILLMAP_ACTION_PAGE_UNMAP = 5,
  STILLMAP_ACTION_RESERVE = 6,
  STILLMAP_ACTION_OUT_OF_MEMORY = 7,
  STILLMAP_ACTION_SNAPSHOT = 8
} stillmap_action;

typedef struct stillmap_allocator_event {
  size_t struct_size;  // set by the library
  uint32_t action;     // stillmap_action
  uint32_t reserved;   // 0
  void *address;
  size_t bytes;   // of a block: as requested
  size_t usable;  // of a block: including rounding
  stillmap_stream stream;
  void *from;        // PAGE_MOVE: the old address
  size_t available;  // OUT_OF_MEMORY: bytes that were available
} stillmap_allocator_event;

// Called for each event, with locks of the allocator held: it calls no function of that allocator. Returns 0 to
// receive no further events. Concurrent calls.
typedef int (*stillmap_allocator_observer)(const stillmap_allocator_event *event, void *user);
// Called without any lock where a request of `bytes` would fail. Returns 0 to let it fail, another number to retry.
typedef int (*stillmap_out_of_memory_callback)(size_t bytes, void *user);

typedef struct stillmap_allocator_options {
  size_t struct_size;
  size_t limit_bytes;         // of physical memory; 0: none
  size_t soft_limit_bytes;    // above it, free pages are moved before new ones are created; 0: none
  size_t page_bytes;          // 0: the device's granularity
  size_t create_ahead_bytes;  // created ahead of need by a thread; 0: none
  const char *tag;            // NULL: "caching_allocator"
  uint64_t hint;              // preferred base address; 0: none
  const int *peer_devices;    // ordinals of devices that may access the blocks, too
  size_t peer_device_count;
  stillmap_quota *quota;  // a limit that processes share; NULL: none
  stillmap_allocator_observer observer;
  void *observer_user;
  stillmap_out_of_memory_callback on_out_of_memory;
  void *on_out_of_memory_user;
  const char
      *record_to;  // a file for a trace of all requests; NULL: the one that STILLMAP_RECORD names
  uint32_t exportable;  // stillmap_exportable
  uint32_t reserved;    // 0
} stillmap_allocator_options;

typedef struct stillmap_allocate_options {
  size_t struct_size;
  size_t alignment;   // bytes, a power of two up to 1 GiB; 0: 512
  uint32_t zero;      // 1: sets all bytes to zero by work queued on the stream
  uint32_t reserved;  // 0
} stillmap_allocate_options;

// Bytes, unless it says otherwise.
typedef struct stillmap_allocator_stats {
  size_t struct_size;
  size_t live;       // allocated blocks
  size_t live_peak;  // since creation or stillmap_allocator_reset_peaks()
  size_t requested;  // allocated blocks, as requested
  size_t blocks;     // number of allocated blocks
  size_t pending_free;
  size_t committed;  // addresses with physical memory
  size_t committed_peak;
  size_t reserved;  // addresses
  size_t aliased;
  size_t cached;
  size_t free_whole_pages;
  size_t page_edges;
  size_t page_bytes;
  size_t created_ahead;
  size_t limit;    // SIZE_MAX: none
  size_t streams;  // number of arenas
  size_t host_bytes;
  uint64_t allocations;
  uint64_t frees;
  uint64_t growths;
  uint64_t pages_created;
  uint64_t pages_moved;
  uint64_t pages_recalled;
  uint64_t pages_released;
  uint64_t host_waits;
  uint64_t out_of_memory;  // requests that failed for want of memory
} stillmap_allocator_stats;

// What was released, and the free memory that stayed, by the reason. Bytes.
typedef struct stillmap_release_report {
  size_t struct_size;
  size_t released;
  size_t kept;  // as asked
  size_t private_pools;
  size_t capturing;
  size_t pending_free;
  size_t page_edges;
} stillmap_release_report;

typedef struct stillmap_history_options {
  size_t struct_size;
  size_t events;         // capacity of the ring; 0: 65536
  uint32_t stack_depth;  // frames of the call stack kept with each event, at most 64
  uint32_t reserved;     // 0
} stillmap_history_options;

STILLMAP_C_API stillmap_status
stillmap_allocator_create(stillmap_device *device, const stillmap_allocator_options *options,
                          stillmap_allocator **allocator) STILLMAP_C_NOEXCEPT;
// Waits for the device and releases all memory, blocks that are still allocated included.
STILLMAP_C_API stillmap_status stillmap_allocator_destroy(stillmap_allocator *allocator)
    STILLMAP_C_NOEXCEPT;
// A block for work queued on `stream` from now on; NULL for 0 bytes. `options` may be NULL.
// Cost: no driver call while free memory fits.
STILLMAP_C_API stillmap_status stillmap_allocator_allocate(stillmap_allocator *allocator,
                                                           size_t bytes, stillmap_stream stream,
                                                           const stillmap_allocate_options *options,
                                                           void **block) STILLMAP_C_NOEXCEPT;
// Frees a block whose last use was on the stream it was allocated for, and on those passed to record_use; or on
// `last_used_on`. NULL is ignored. The memory is reusable on that stream at once.
STILLMAP_C_API stillmap_status stillmap_allocator_free(stillmap_allocator *allocator,
                                                       void *block) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_free_on_stream(
    stillmap_allocator *allocator, void *block, stillmap_stream last_used_on) STILLMAP_C_NOEXCEPT;
// Work queued on `stream` uses the block, too: after the free, its memory is not reused before that work is done.
STILLMAP_C_API stillmap_status stillmap_allocator_record_use(
    stillmap_allocator *allocator, void *block, stillmap_stream stream) STILLMAP_C_NOEXCEPT;
// `stream` is about to be destroyed.
STILLMAP_C_API stillmap_status stillmap_allocator_forget_stream(
    stillmap_allocator *allocator, stillmap_stream stream) STILLMAP_C_NOEXCEPT;
// *owns: 1 where the address is in the allocator's ranges, else 0.
STILLMAP_C_API stillmap_status stillmap_allocator_owns(stillmap_allocator *allocator,
                                                       const void *address,
                                                       int *owns) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_usable_size(stillmap_allocator *allocator,
                                                              const void *block,
                                                              size_t *bytes) STILLMAP_C_NOEXCEPT;
// Release whole free pages to the device: all, or until `keep` bytes of them are left. `report` may be NULL.
STILLMAP_C_API stillmap_status stillmap_allocator_empty_cache(
    stillmap_allocator *allocator, stillmap_release_report *report) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_trim(stillmap_allocator *allocator, size_t keep,
                                                       stillmap_release_report *report)
    STILLMAP_C_NOEXCEPT;
// Exactly as many bytes; SIZE_MAX: no limit. Releases nothing.
STILLMAP_C_API stillmap_status stillmap_allocator_set_limit(stillmap_allocator *allocator,
                                                            size_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_set_soft_limit(stillmap_allocator *allocator,
                                                                 size_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_get_stats(
    stillmap_allocator *allocator, stillmap_allocator_stats *stats) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_reset_peaks(stillmap_allocator *allocator)
    STILLMAP_C_NOEXCEPT;
// The memory map and the statistics as JSON (docs/heap_map.md); get_history: with the recorded events.
STILLMAP_C_API stillmap_status stillmap_allocator_get_map(stillmap_allocator *allocator,
                                                          char **json) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_get_history(stillmap_allocator *allocator,
                                                              char **json) STILLMAP_C_NOEXCEPT;
// Records events from now on. stop keeps what was recorded, forget frees it.
STILLMAP_C_API stillmap_status stillmap_allocator_start_history(
    stillmap_allocator *allocator, const stillmap_history_options *options) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_stop_history(stillmap_allocator *allocator)
    STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_forget_history(stillmap_allocator *allocator)
    STILLMAP_C_NOEXCEPT;
// A step of a program that shares its device: waits until `bytes` are there, and keeps them until end_step.
STILLMAP_C_API stillmap_status stillmap_allocator_begin_step(stillmap_allocator *allocator,
                                                             size_t bytes) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_allocator_end_step(stillmap_allocator *allocator)
    STILLMAP_C_NOEXCEPT;
// The end of an iteration, in a recorded trace.
STILLMAP_C_API stillmap_status stillmap_allocator_mark_iteration(stillmap_allocator *allocator)
    STILLMAP_C_NOEXCEPT;

// Private pools: memory that captured graphs replay on. Between begin and end all blocks of `stream` come from the
// pool, whose pages stay mapped while it exists. A pool has one reference when it is created.
STILLMAP_C_API stillmap_status stillmap_pool_create(stillmap_allocator *allocator,
                                                    uint64_t *pool) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_pool_retain(stillmap_allocator *allocator,
                                                    uint64_t pool) STILLMAP_C_NOEXCEPT;
// `replayed_on`: every stream that the graphs were launched on.
STILLMAP_C_API stillmap_status stillmap_pool_release(stillmap_allocator *allocator, uint64_t pool,
                                                     const stillmap_stream *replayed_on,
                                                     size_t stream_count) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_pool_begin(stillmap_allocator *allocator, uint64_t pool,
                                                   stillmap_stream stream) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_pool_end(stillmap_allocator *allocator, uint64_t pool,
                                                 stillmap_stream stream) STILLMAP_C_NOEXCEPT;

// ---- suspend and resume ------------------------------------------------------------------------

// Where the contents are kept while memory is suspended.
typedef enum stillmap_store {
  STILLMAP_STORE_PINNED_HOST = 0,
  STILLMAP_STORE_FILE = 1,    // an unnamed file
  STILLMAP_STORE_DISCARD = 2  // nowhere: resumed memory has unspecified contents
} stillmap_store;

typedef struct stillmap_suspender_options {
  size_t struct_size;
  size_t keep_pinned_bytes;  // pinned memory kept for the next suspension
  size_t streams;            // copies in flight at once; 0: 4
} stillmap_suspender_options;

typedef struct stillmap_suspend_options {
  size_t struct_size;
  const char *directory;  // of the file; NULL: $TMPDIR, else /tmp
  uint32_t store;         // stillmap_store
  uint32_t
      imports;  // 1: memory of other processes is suspended, too, and resumed as a private copy
} stillmap_suspend_options;

typedef struct stillmap_suspended {
  size_t struct_size;
  uint64_t tags;            // number of tags
  uint64_t places;          // addresses that pages were unmapped from
  uint64_t bytes;           // of pages, each once
  uint64_t released_bytes;  // that the device has free again
} stillmap_suspended;

STILLMAP_C_API stillmap_status
stillmap_suspender_create(stillmap_device *device, const stillmap_suspender_options *options,
                          stillmap_suspender **suspender) STILLMAP_C_NOEXCEPT;
// Contents that are still suspended are lost.
STILLMAP_C_API stillmap_status stillmap_suspender_destroy(stillmap_suspender *suspender)
    STILLMAP_C_NOEXCEPT;
// Saves the contents of a tag, or of every tag with mapped memory (NULL), unmaps its pages and returns them to the
// device; the addresses stay. All or nothing. Waits for the device's work; meanwhile nothing may use or change the
// memory. `done` may be NULL.
STILLMAP_C_API stillmap_status stillmap_suspender_suspend(
    stillmap_suspender *suspender, const char *tag, const stillmap_suspend_options *options,
    stillmap_suspended *done) STILLMAP_C_NOEXCEPT;
// Brings a tag, or all that are suspended (NULL), back at the same addresses. Failure: that tag, and those after it,
// stay suspended.
STILLMAP_C_API stillmap_status stillmap_suspender_resume(
    stillmap_suspender *suspender, const char *tag, stillmap_suspended *done) STILLMAP_C_NOEXCEPT;
// Drops the contents of a suspended tag for good.
STILLMAP_C_API stillmap_status stillmap_suspender_forget(stillmap_suspender *suspender,
                                                         const char *tag) STILLMAP_C_NOEXCEPT;
// What is suspended, as JSON: an array of objects with tag, store, places, bytes, released_bytes.
STILLMAP_C_API stillmap_status stillmap_suspender_get_tags(stillmap_suspender *suspender,
                                                           char **json) STILLMAP_C_NOEXCEPT;

// ---- snapshots ---------------------------------------------------------------------------------

typedef enum stillmap_compression {
  STILLMAP_COMPRESSION_NONE = 0,
  STILLMAP_COMPRESSION_LZ4 = 1,
  STILLMAP_COMPRESSION_ZSTD = 2
} stillmap_compression;

// Bytes of contents. Returns 0 to go on, another number to cancel. Called by one thread at a time, of the library.
typedef int (*stillmap_progress_callback)(uint64_t bytes, uint64_t total_bytes, void *user);

typedef struct stillmap_save_options {
  size_t struct_size;
  const char *parent;    // an image that the new one builds on; NULL: none
  uint32_t compression;  // stillmap_compression
  uint32_t replace;      // 1: replaces an image of this name
  uint32_t force;        // 1, with replace: also one that others build on
  uint32_t skip_verify;  // 1: does not read the image back before it gets its name
  uint32_t threads;      // 0: the number of processors, at most 8
  uint32_t reserved;     // 0
  stillmap_progress_callback on_progress;
  void *user;
} stillmap_save_options;

typedef struct stillmap_saved {
  size_t struct_size;
  uint64_t file_bytes;
  uint64_t contents_bytes;
  uint64_t stored_bytes;
  uint64_t chunks;
  uint64_t zero_chunks;
  uint64_t same_chunks;
  uint64_t parent_chunks;
  uint64_t compressed_chunks;
} stillmap_saved;

typedef struct stillmap_restore_options {
  size_t struct_size;
  const char *const *tags;  // only these; NULL: all
  size_t tag_count;
  uint32_t relocate;  // 1: at other addresses where the original ones are taken
  uint32_t threads;   // 0: the number of processors, at most 8
  stillmap_progress_callback on_progress;
  void *user;
} stillmap_restore_options;

typedef struct stillmap_restored_block {
  size_t struct_size;
  void *address;
  size_t bytes;         // of address space
  size_t mapped_bytes;  // with memory
  void *original_address;
  const char *tag;  // valid until stillmap_restored_release()
} stillmap_restored_block;

// Writes an image of all memory with one of the tags: the whole file, or none. Waits for the device's work; until it
// returns nothing changes the memory. `saved` may be NULL.
STILLMAP_C_API stillmap_status stillmap_snapshot_save(stillmap_device *device, const char *path,
                                                      const char *const *tags, size_t tag_count,
                                                      const stillmap_save_options *options,
                                                      stillmap_saved *saved) STILLMAP_C_NOEXCEPT;
// Brings the memory of an image back at its addresses, in this process or another. All or nothing.
STILLMAP_C_API stillmap_status stillmap_snapshot_restore(
    stillmap_device *device, const char *path, const stillmap_restore_options *options,
    stillmap_restored **restored) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_restored_get_count(stillmap_restored *restored,
                                                           size_t *blocks) STILLMAP_C_NOEXCEPT;
STILLMAP_C_API stillmap_status stillmap_restored_get_block(
    stillmap_restored *restored, size_t index, stillmap_restored_block *block) STILLMAP_C_NOEXCEPT;
// Waits for the device and releases the memory.
STILLMAP_C_API stillmap_status stillmap_restored_release(stillmap_restored *restored)
    STILLMAP_C_NOEXCEPT;

// ---- control server ----------------------------------------------------------------------------

// The callbacks of a control server run one at a time, on a thread of the server. Arrays and texts are valid during
// the call.

// Stops work on these tags: after it has returned 0, nothing more is queued on their memory. Another number, a
// stillmap_status, refuses the request. Returns early if stillmap_stop_requested(stop).
typedef int (*stillmap_quiesce_callback)(const char *const *tags, size_t tag_count,
                                         stillmap_stop *stop, void *user);
// `resume`: work may continue. `released`: the memory belongs to another process.
typedef void (*stillmap_tags_callback)(const char *const *tags, size_t tag_count, void *user);
// Asks the task to write less, by this fraction of its speed: 0 to below 1.
typedef void (*stillmap_throttle_callback)(const char *const *tags, size_t tag_count,
                                           double fraction, void *user);

typedef struct stillmap_control_options {
  size_t struct_size;
  stillmap_quiesce_callback quiesce;  // NULL: nothing has to be stopped
  stillmap_tags_callback resume;
  stillmap_tags_callback released;
  stillmap_throttle_callback throttle;
  void *user;                     // of all callbacks
  stillmap_suspender *suspender;  // NULL: one of the server's own
  const char *records;            // the directory of migration records; NULL: requests name one
  int64_t timeout_milliseconds;   // of a client's request; 0: 5 s
  size_t max_connections;         // 0: 8
} stillmap_control_options;

// Listens at a path, or at an abstract name after '@', for `stillmap task status|suspend|resume|snapshot|…`. Where the
// environment has STILLMAP_AUDIT, each request is recorded there (docs/operating.md); a log that cannot be opened is an
// error.
STILLMAP_C_API stillmap_status stillmap_control_create(
    stillmap_device *device, const char *address, const stillmap_control_options *options,
    stillmap_control **control) STILLMAP_C_NOEXCEPT;
// Waits for the current request.
STILLMAP_C_API stillmap_status stillmap_control_destroy(stillmap_control *control)
    STILLMAP_C_NOEXCEPT;
// The address it listens at; NULL of an invalid handle. Valid as long as the server.
STILLMAP_C_API const char *stillmap_control_address(stillmap_control *control) STILLMAP_C_NOEXCEPT;
// 1: the callback should return early. For the `stop` that it was given, during the call.
STILLMAP_C_API int stillmap_stop_requested(stillmap_stop *stop) STILLMAP_C_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
