// Keeps published memory for its readers, also when its publisher has ended. docs/publication.md
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/publication/publication.h"

namespace stillmap::publication {

enum class holder_step {
  publish_received,  // the manifest
  pages_received,
  ready_sent,
  stored,  // published: readers get it
  published_sent,
  attach_received,
  manifest_sent,
  pages_sent,
};
const char *name_of(holder_step s) noexcept;

struct holder_options {
  // Whether to serve this process. Empty: if it runs as the same user or as root. A process that is served
  // can read, replace and withdraw everything that is published. Called on the thread that accepts
  // connections: it must not wait.
  std::function<bool(const checkpoint::peer_credentials &)> allow;
  // For each message to or from a client, as a whole; pages come 128 in a message. A claim waits for ever.
  std::chrono::milliseconds timeout{10'000};
  // Clients served at once; readers that have attached are not counted. At most three in four of them
  // wait for a publication or have a claim, so that a publisher is served; a further one is refused (busy).
  std::size_t max_connections = 64;
  std::function<void(holder_step)> on_step;
};

// Keeps memory while it exists, with one sleeping thread, and one for each client while it is served. It
// uses no driver, no GPU and no context: it has one descriptor for each page, and the driver keeps a page
// as long as a descriptor of it is open.
// Threads: safe.
// Fork:    the child has no holder, and none of its descriptors: its copy can be destroyed, which does
//          nothing.
class holder {
 public:
  // Listens at `address`: a path, or '@' and an abstract name. Replaces a socket that a dead process has
  // left behind.
  // Errors: as control::server::create.
  static result<holder> create(const std::string &address, holder_options options = {});
  holder(holder &&) noexcept;
  holder &operator=(holder &&) = delete;
  // Ends all leases. What no process has mapped is freed.
  ~holder();

  const std::string &address() const;
  // By name and generation. Allocates host memory: may throw std::bad_alloc.
  std::vector<held_publication> publications() const;

 private:
  class core;
  explicit holder(std::unique_ptr<core> c) noexcept;
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::publication
