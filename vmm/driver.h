// The driver interface: every CUDA call of Stillmap goes through here, is counted, and has its error
// translated. This header needs no CUDA header.
//
// The driver is loaded at run time and never unloaded (an unloaded libcuda takes live contexts
// with it). Each symbol is resolved at the version that introduced the signature called.
// docs/driver.md#the-driver-seam
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/vmm/base/driver_types.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap {

struct driver_table;  // the function pointers: driver/table.h, which needs <cuda.h>

class driver {
 public:
  // The driver this process uses: STILLMAP_DRIVER=cuda (libcuda.so.1 of the system, WSL's path
  // included), =host (the simulator), =<path>; unset: cuda. Loaded and initialised at the
  // first successful call, the same object ever after. A failure is not remembered.
  // Errors: not_supported (none found, too old, or it fails to initialise). With STILLMAP_VERBOSE set
  //         the paths that were tried are printed on stderr.
  // Threads: safe. Cost: after the first call, one atomic load.
  static result<driver *> get();

  // A given library ("host", "cuda" or a path). The same path gives the same object.
  static result<driver *> load(std::string_view which);

  const std::string &path() const { return path_; }
  int version() const { return version_; }  // 13000 = CUDA 13.0
  bool has(driver_call c) const;            // the symbol was found
  void *symbol(const char *name) const;     // dlsym in the loaded library, nullptr if absent
  // Whether it is the simulator, which has no device but describes one: docs/driver.md#the-driver-seam
  bool is_simulator() const { return simulator_; }
  // A function of the simulator beside CUDA's, by its name without the simulator's; nullptr if absent.
  void *simulator_function(const char *name) const;
  const driver_table &table() const { return *table_; }

  // Calls made through this seam since the last reset, and bytes moved. Relaxed atomics: exact
  // when no other thread is calling.
  driver_counts counts() const;
  void reset_counts();

  // ---- one method per driver call; each returns the driver's error with the operation's name ----
  // Streams: methods with a stream are asynchronous, others host-synchronous as CUDA defines them.
  // Context: memory, stream and event calls need a current context (context_guard) unless said.
  // Threads: safe.

  // cuInit, which load() has called once already: again after a reset of the simulator, which has
  // taken all handles along.
  status initialise() const;
  result<int> device_count() const;
  result<int> device_handle(int ordinal) const;  // cuDeviceGet; what `device` is below
  result<std::string> device_name(int device) const;
  result<int> device_attribute(int attribute, int device) const;  // CUdevice_attribute by value
  result<physical_size> device_total_memory(int device) const;
  result<std::array<unsigned char, 16>> device_uuid(int device) const;
  result<bool> can_access_peer(int device, int peer) const;

  result<context_handle> retain_primary_context(int device) const;
  status release_primary_context(int device) const;
  result<context_handle> current_context() const;
  status push_context(context_handle context) const;
  status pop_context() const;
  status synchronize_context() const;

  result<memory_info> memory_info_now() const;  // free and total, by cuMemGetInfo
  result<device_address> allocate(std::size_t bytes) const;
  status free(device_address at) const;
  result<device_address> allocate_async(std::size_t bytes, stream_handle stream) const;
  status free_async(device_address at, stream_handle stream) const;
  result<void *> allocate_host(std::size_t bytes) const;  // pinned
  status free_host(void *at) const;

  status copy_to_device(device_address to, const void *from, std::size_t bytes) const;
  status copy_to_host(void *to, device_address from, std::size_t bytes) const;
  status copy_on_device(device_address to, device_address from, std::size_t bytes) const;
  status copy_to_device_async(device_address to, const void *from, std::size_t bytes,
                              stream_handle stream) const;
  status copy_to_host_async(void *to, device_address from, std::size_t bytes,
                            stream_handle stream) const;
  status copy_on_device_async(device_address to, device_address from, std::size_t bytes,
                              stream_handle stream) const;
  status set_bytes_async(device_address at, unsigned char value, std::size_t bytes,
                         stream_handle stream) const;

  // alignment 0: the driver's; hint: a preferred address, may be ignored. Source: conformance 2-9.
  result<device_address> reserve_addresses(std::size_t bytes, std::size_t alignment,
                                           device_address hint) const;
  status free_addresses(virtual_range range) const;  // exactly as reserved
  result<physical_handle> create_physical(std::size_t bytes, const physical_properties &p) const;
  status release_physical(physical_handle h) const;
  status map(device_address at, std::size_t bytes, physical_handle h) const;
  status unmap(virtual_range range) const;  // whole mappings only
  status set_access(virtual_range range, const access_grant *grants, std::size_t count) const;
  result<access_mode> get_access(device_address at, memory_location from) const;
  result<int> export_fd(physical_handle h) const;  // caller closes it
  result<std::array<unsigned char, 64>> export_fabric(physical_handle h) const;
  result<physical_handle> import_fd(int fd) const;  // fd stays the caller's
  // What import_fd gave (and retain_physical once more) and release_physical has not had yet.
  // Allocates host memory: may throw std::bad_alloc. Cost: a lock.
  std::vector<physical_handle> imports() const;
  result<std::size_t> granularity(const physical_properties &p, bool recommended) const;
  result<physical_properties> properties(physical_handle h) const;
  result<physical_handle> retain_physical(device_address at) const;

  result<stream_handle> create_stream(bool non_blocking) const;
  status destroy_stream(stream_handle s) const;
  status synchronize_stream(stream_handle s) const;
  result<bool> stream_idle(stream_handle s) const;  // cuStreamQuery
  status stream_wait(stream_handle s, event_handle e) const;
  result<bool> stream_capturing(stream_handle s) const;
  result<capture_mode> exchange_capture_mode(capture_mode now) const;  // returns what it was
  result<event_handle> create_event() const;                           // without timing
  status destroy_event(event_handle e) const;
  status record_event(event_handle e, stream_handle s) const;
  result<bool> event_done(event_handle e) const;  // cuEventQuery
  status synchronize_event(event_handle e) const;

  // `image`: PTX, or code for this device; the driver compiles what it has to.
  result<module_handle> load_module(const char *image) const;
  status unload_module(module_handle m) const;  // nothing of it runs any more
  result<function_handle> module_function(module_handle m, const char *name) const;
  // One-dimensional. `params[i]` points at the i-th parameter, which is copied.
  status launch(function_handle f, unsigned blocks, unsigned threads, void **params,
                stream_handle stream) const;

  // Processes as a whole (CUDA 12.8): `pid` is this one or another of the same user's.
  // stillmap/process/driver_process.h puts them together.
  // Errors: not_supported (an older driver; a process or memory that the driver cannot save),
  //         busy (the time is over), invalid_argument (no process that uses the driver; one that
  //         is not in the state that the step begins with).
  result<process_state> state_of_process(int pid) const;
  // milliseconds 0: as long as it takes.
  status lock_process(int pid, unsigned milliseconds) const;
  status checkpoint_process(int pid) const;
  // Every GPU there was must be among the changes, or there are none.
  status restore_process(int pid, const device_change *changes, std::size_t count) const;
  status unlock_process(int pid) const;
  result<int> restore_thread_of_process(int pid) const;

 private:
  friend struct driver_access;  // driver/calls.h
  driver() = default;
  status prepare_import() const;
  void end_import(physical_handle imported, bool only_again) const noexcept;

  std::string path_;
  void *library_ = nullptr;
  int version_ = 0;
  bool simulator_ = false;
  std::unique_ptr<driver_table, void (*)(driver_table *)> table_{nullptr, nullptr};
  mutable std::array<std::atomic<std::uint64_t>, driver_call_count> calls_{};
  mutable std::atomic<std::uint64_t> to_device_{0}, to_host_{0}, on_device_{0};
  mutable std::atomic<std::size_t> import_count_{0};  // what imports_ holds, read without the lock
  mutable mutex import_mutex_;                        // lock order: a leaf
  // A handle occurs once per import.
  mutable std::vector<physical_handle> imports_ STILLMAP_GUARDED_BY(import_mutex_);
  // imports_ has room for so many more.
  mutable std::size_t importing_ STILLMAP_GUARDED_BY(import_mutex_) = 0;
};

}  // namespace stillmap
