// The socket from which other processes get the pages of exported blocks. There is none, and no thread, before the
// first handle.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>

#include "preload/service/ipc/exported_pages.h"
#include "preload/service/ipc/messages.h"

namespace stillmap::preload {

// Listens, once: later calls return the same.
// Returns the number that is in the socket's name and in every handle.
// Errors: the system's (no descriptor, no thread); then a later call tries again. Throws std::bad_alloc.
result<std::uint64_t> start_exporter();
// Whether a handle with this number is one of this process.
bool is_own_exporter(std::uint64_t server) noexcept;

// Serves one connection: a handle, and all pages behind it. Trusts nothing of what it is sent, and waits for nothing
// without a deadline. Holds no lock meanwhile.
class export_session {
 public:
  export_session(checkpoint::socket_channel &with, std::atomic<bool> &claimed,
                 std::stop_token stop) noexcept
      : with_(with), claimed_(claimed), stop_(std::move(stop)) {}

  // What keeps the block while the connection is there; null: the importer gets nothing.
  std::shared_ptr<const void> serve() noexcept;
  static void refuse(checkpoint::socket_channel &with, driver_code why) noexcept;

 private:
  result<std::shared_ptr<const exported_pages>> send_block();
  result<std::shared_ptr<const exported_pages>> open();
  result<std::size_t> send_pages(const exported_pages &all, std::size_t first);
  result<checkpoint::socket_message> receive();
  status send(ipc_message kind, std::span<const std::byte> body, std::span<const int> fds = {});

  checkpoint::socket_channel &with_;
  std::atomic<bool> &claimed_;
  const std::stop_token stop_;
};

}  // namespace stillmap::preload
