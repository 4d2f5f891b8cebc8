// Publishes memory of this process: read-only from then on, and mapped by any number of processes of the
// same machine at the same addresses, without a copy. A holder keeps it: docs/publication.md
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/publication/manifest.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::publication {

// Steps of publishing and of attaching, in order; on_step of the options is called after each.
enum class step {
  connected,          // both: the holder may be used
  sealed,             // publisher: the memory is read-only
  manifest_sent,      // publisher
  pages_sent,         // publisher
  committed,          // publisher: from here on the holder may have published it
  published,          // publisher: it has
  manifest_received,  // reader
  reserved,           // reader: the addresses are reserved
  pages_received,     // reader
  mapped,             // reader
};
const char *name_of(step s) noexcept;

// How a holder is spoken to.
struct client_options {
  // For each message to or from the holder, as a whole.
  std::chrono::milliseconds timeout{10'000};
  // Whether to trust this holder. Default: its user must be ours, or root.
  std::function<bool(const checkpoint::peer_credentials &)> allow;
  std::stop_token cancel;
  std::function<void(step)> on_step;
};

struct publish_options : client_options {
  // Bytes that every reader receives with the memory, at most max_metadata_bytes.
  std::span<const std::byte> metadata;
  // Whether to compute digests of the contents, on the device, which readers can verify.
  bool digests = true;
  // A fence after all work that writes to the memory. Without it, the device is waited for.
  std::optional<fence> idle;
};

struct published_memory {
  std::uint64_t generation = 0;  // larger than of all that the holder has published before
  image::sha256 id;              // of the contents; zero without digests
  std::size_t pages = 0;
  std::size_t bytes = 0;  // of pages, each once
};

// Publishes all memory of these tags under a name, as its next generation. The holder at `address` keeps
// it when this process ends; older generations stay with the readers that have them.
// Requires: no page of the tags is mapped or unmapped during the call, and nothing writes to the memory
//           after `idle`.
// Ensures:  the memory is read-only here, for the device: a write is a fault. Its pages are not reused:
//           they are released with their owners. Failure: everything is as before, except where the
//           connection fails at the commit: then the holder may have published it, and it stays read-only
//           (busy, and the reason says so). Access rights that the driver, or a lack of host memory,
//           does not let be set back are a background error.
// Errors:   invalid_argument (the name; no memory has the tag; metadata too long), not_supported (a page is not
//           exportable as a file descriptor, or another process has it already: value = its address; a
//           device without VMM), busy (memory is suspended, or also used outside of these tags: value = the
//           address; another call has a tag; the holder does not answer), operation_canceled, an error of the
//           holder (reason `the peer refused`: it has no descriptors left), the system's, the driver's.
// Threads:  safe for different memory.
// Cost:     one set-access a contiguous run, one export a page; with digests, a read of the memory by the device.
result<published_memory> publish(const device &d, const std::string &address,
                                 const std::string &name, std::span<const std::string> tags,
                                 const publish_options &options = {});

// One generation of a name, as a holder has it.
struct held_publication {
  std::string name;
  std::uint64_t generation = 0;
  bool newest = false;  // the one that attach() gives; false also for one that was withdrawn
  std::array<unsigned char, 16> device{};
  image::sha256 id;  // of the contents; zero without digests
  std::uint64_t pages = 0, bytes = 0;
  pid_t publisher = 0;
  std::vector<pid_t> readers;  // each attachment once
};

// What a holder has, by name and generation.
// Errors: busy (no answer), corrupt, the system's. Cost: no driver call.
result<std::vector<held_publication>> list(const std::string &address,
                                           const client_options &options = {});

// The newest generation of a name is given to no further reader; it goes with its last one.
// Errors: invalid_argument (nothing is published under the name), as list().
result<std::uint64_t> withdraw(const std::string &address, const std::string &name,
                               const client_options &options = {});

}  // namespace stillmap::publication
