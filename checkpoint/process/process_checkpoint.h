// Makes this process fit to be saved whole (cuCheckpointProcess*, CRIU), and puts it right again
// when it runs on, here or restored elsewhere: at the same addresses. docs/criu.md
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stillmap/checkpoint/process/blockers.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/device.h"

namespace stillmap::process {

struct prepare_options {
  // Tags whose contents go to host memory of this process, which CRIU saves, and whose pages go
  // back to the device: less for the driver to carry, and nothing at all where it cannot carry
  // memory.
  std::vector<std::string> evict{};
  bool evict_everything = false;  // all tags that have pages (memory without VMM stays)
  // Memory of other processes: let go of; what comes back is a copy, and this process's own. Else
  // it is a refusal. (What this process took over by handoff nobody else has: it is always
  // replaced.)
  bool copy_imports = false;
  // Descriptors of exported memory refer to /dev/null from then on, also after resume_after(). Else
  // an open one is a refusal.
  bool close_exports = true;
};

struct prepared {
  std::size_t tags = 0;     // whose memory is away
  std::size_t bytes = 0;    // of pages, each once
  physical_size released;   // what devices got back
  std::size_t imports = 0;  // pages that other processes had made, and that are let go of
  std::size_t exports = 0;  // descriptors closed
};

// Threads: safe, one call at a time. From prepare() to resume_after() nobody else may use or change
// the memory concerned, nor queue work on it, import or export.
class preparation {
 public:
  // Requires: `devices` is all that this process uses.
  // Errors:   invalid_argument (no device), the driver's. Cost: some streams on each.
  static result<std::unique_ptr<preparation>> create(std::vector<device> devices);
  // What is away then is lost, which is reported to the error sink.
  ~preparation();
  preparation(const preparation &) = delete;
  preparation &operator=(const preparation &) = delete;

  // Waits until the devices are idle. Afterwards this process has no memory of another's, no
  // descriptor of its own, and what was to be evicted is in its host memory.
  // Ensures: failure: as before. (Where the driver refuses a step of the way back too, which the
  //          sink is told, resume_after() is what to call. A copy of an import that was let go of
  //          already stays a copy: the imports go last.)
  // Errors:  busy (prepared already; a handle of another process's memory is mapped nowhere; an
  //          export is open: value = its descriptor; a page is used outside of its tag: value = its
  //          address), not_supported (memory of another process: value = its address; eviction on a
  //          device without VMM), invalid_argument (nothing has that tag), out_of_memory (the
  //          host's), the driver's, the system's.
  // Cost:    as suspender::suspend for each tag concerned.
  result<prepared> prepare(const prepare_options &how = {});

  // Gives back what prepare() took, at the addresses that still want it. Nothing away: succeeds.
  // Ensures: failure: what came back stays, the rest is away as before; call it again.
  // Errors:  as suspender::resume.
  status resume_after();

  bool fit() const;  // prepared, and not resumed yet
  std::vector<checkpoint::suspended_tag> away() const;

 private:
  struct unit {
    device on;
    std::unique_ptr<checkpoint::suspender> by;
  };
  explicit preparation(std::vector<unit> units, std::vector<device> devices)
      : units_(std::move(units)), devices_(std::move(devices)) {}
  status suspend(const prepare_options &how, const std::vector<obstacle> &in_the_way,
                 prepared &told);
  status bring_back();

  mutable std::mutex mutex_;
  std::vector<unit> units_;
  std::vector<device> devices_;
  bool fit_ = false;
};

}  // namespace stillmap::process
