// A block of another process, mapped here.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "preload/service/ipc/handle.h"
#include "preload/service/ipc/messages.h"
#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/reservation.h"

namespace stillmap::preload {

// Threads: externally synchronised.
class imported_block {
 public:
  // Connects to the exporter, imports the pages under the block, and maps them for their device and all that can
  // access it. `current`: the device of the context that asks, which must be one of these.
  // Errors: as code_of_refusal reads them; throws std::bad_alloc. Failure: nothing is left of it.
  // Cost:   one import a page; one reserve, and the maps.
  static result<std::unique_ptr<imported_block>> open(const memory_handle &h, int current);
  // Unmaps it if close() has not.
  ~imported_block();
  imported_block(const imported_block &) = delete;
  imported_block &operator=(const imported_block &) = delete;

  const memory_handle &handle() const { return handle_; }
  int ordinal() const { return device_.ordinal(); }
  virtual_range block() const;  // as the exporter allocated it
  // All pages: what else lies on them is mapped, too.
  virtual_range pages() const { return addresses_.range(); }

  // Unmaps it, and tells the exporter. Requires: no queued work uses it. Errors: the driver's; it stays mapped.
  status close();

 private:
  imported_block(const memory_handle &h, device d, reservation addresses,
                 std::shared_ptr<page_pool> pool, checkpoint::socket_channel exporter)
      : handle_(h),
        device_(std::move(d)),
        addresses_(std::move(addresses)),
        pool_(std::move(pool)),
        exporter_(std::move(exporter)) {}

  status fetch(std::uint64_t count);
  status import_page(const owned_fd &fd);
  status map();

  const memory_handle handle_;
  const device device_;
  reservation addresses_;
  const std::shared_ptr<page_pool> pool_;
  std::vector<page_ptr> imported_;  // until they are mapped
  bool mapped_ = false;
  // The exporter keeps the block while this is open.
  std::optional<checkpoint::socket_channel> exporter_;
};

}  // namespace stillmap::preload
