// Prepares this process for a checkpoint by the CUDA driver and CRIU, and restores its device memory
// afterwards, here or in the restored process, at the same addresses. docs/criu.md
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/checkpoint/process/blockers.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"

namespace stillmap::process {

struct prepare_options {
  // Tags to evict: their contents move to host memory of this process, which CRIU saves, and their
  // pages are returned to the device. The driver has less memory to carry, or none.
  std::vector<std::string> evict{};
  // Evict all tags that have pages. (Memory of a device without VMM stays.)
  bool evict_everything = false;
  // Release memory that was imported from other processes; resume() creates a private copy of it.
  // Otherwise such memory is an error. Memory that was handed off to this process has no other
  // owner, and is always replaced.
  bool copy_imports = false;
  // Redirect file descriptors of exported memory to /dev/null, for good. Otherwise an open one is an
  // error.
  bool close_exports = true;
};

struct prepare_report {
  std::size_t tags = 0;     // that are suspended now
  std::size_t bytes = 0;    // of their pages, each once
  physical_size released;   // memory that the devices have free again
  std::size_t imports = 0;  // pages created by other processes that were released
  std::size_t exports = 0;  // descriptors closed
};

// Threads: safe, one call at a time. From prepare() to resume() no other thread may use or change
// the memory concerned, queue work on it, or import or export memory.
class process_checkpoint {
 public:
  // Requires: `devices` are all devices that this process uses.
  // Errors:   invalid_argument (no device), the driver's.
  // Cost:     some streams on each device.
  static result<std::unique_ptr<process_checkpoint>> create(std::vector<device> devices);
  // Contents that are still suspended are lost, and reported to the error sink.
  ~process_checkpoint();
  process_checkpoint(const process_checkpoint &) = delete;
  process_checkpoint &operator=(const process_checkpoint &) = delete;

  // Waits for the devices, then removes all blockers and evicts the tags. Afterwards the process
  // holds no memory of other processes and no descriptor of its own memory.
  // Ensures: failure: the process is as before. Two exceptions: if the driver also refuses to undo a
  //          step, that is reported to the error sink; then call resume(). And an import that was
  //          released already is a private copy now; imports are released last.
  // Errors:  busy (prepared already; an import is mapped nowhere; an export is open: value = the
  //          descriptor; a page is also used outside of its tag: value = its address),
  //          not_supported (memory of another process: value = its address; eviction on a device
  //          without VMM), invalid_argument (no memory has the tag), out_of_memory (host memory),
  //          the driver's, the system's.
  // Cost:    as suspender::suspend for each tag concerned.
  result<prepare_report> prepare(const prepare_options &options = {});

  // Restores what prepare() suspended, at all addresses that still have an owner. Succeeds if
  // nothing is suspended.
  // Ensures: failure: some tags are restored, the others still suspended; call it again.
  // Errors:  as suspender::resume.
  status resume();

  // Between a successful prepare() and a successful resume().
  bool prepared() const;
  std::vector<checkpoint::suspended_tag> suspended() const;

 private:
  struct device_entry {
    stillmap::device device;
    std::unique_ptr<checkpoint::suspender> suspender;
  };
  explicit process_checkpoint(std::vector<device_entry> entries, std::vector<device> devices)
      : entries_(std::move(entries)), devices_(std::move(devices)) {}
  status suspend(const prepare_options &options, const std::vector<blocker> &blockers,
                 prepare_report &report) STILLMAP_REQUIRES(mutex_);
  status resume_all() STILLMAP_REQUIRES(mutex_);

  mutable mutex mutex_;  // taken before those of the suspenders
  const std::vector<device_entry> entries_;
  const std::vector<device> devices_;
  bool prepared_ STILLMAP_GUARDED_BY(mutex_) = false;
};

}  // namespace stillmap::process
