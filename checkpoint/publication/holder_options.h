// Options of a holder: access control, limits, and its steps.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "stillmap/checkpoint/base/socket_channel.h"

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

}  // namespace stillmap::publication
