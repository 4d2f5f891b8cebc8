// What a process can be asked from outside, and what it answers. docs/control.md
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/failure.h"
#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/suspend/suspender.h"

namespace stillmap::control {

enum class request_kind : std::uint32_t {
  none,
  status,
  suspend,
  resume,
  snapshot,
  give,
  migrate,
  abort,
  settle,
};
const char *name_of(request_kind k) noexcept;

// All blocks of one name.
struct tag_status {
  std::string tag;  // empty: blocks without a name
  std::uint64_t blocks = 0;
  std::uint64_t reserved_bytes = 0;  // of addresses, as are the next two
  std::uint64_t mapped_bytes = 0;
  std::uint64_t suspended_bytes = 0;
  // Where the contents of what is suspended are, if it was suspended by request.
  std::optional<checkpoint::keep_in> kept_in;
};

// A request that is being carried out.
struct job_status {
  request_kind what = request_kind::none;
  std::chrono::milliseconds since{0};
  std::uint64_t bytes = 0, of_bytes = 0;  // of contents; 0 where that is not known
  // Of a migration, whose bytes are those of the round.
  std::optional<migration::step> step;
  std::uint64_t round = 0, sent = 0;
  bool undecided = false;  // it is over, and nobody knows yet whose the memory is: settle
};

struct process_status {
  pid_t pid = 0;
  std::string device;
  int ordinal = 0;
  std::array<unsigned char, 16> uuid{};
  std::uint64_t page_bytes = 0;
  std::uint64_t memory_total = 0, memory_free = 0;  // of the device; 0: it would not tell
  std::vector<tag_status> tags;                     // by name
  std::uint64_t more_tags = 0;                      // than fit into an answer
  job_status job;
};

struct suspend_request {
  std::string tag;
  checkpoint::keep_in contents = checkpoint::keep_in::pinned_memory;
  std::string directory;  // for keep_in::file, absolute; empty: the process's $TMPDIR, or /tmp
};

// Paths are absolute, and the process that is asked reads and writes them with its own rights.
struct snapshot_request {
  std::vector<std::string> tags;
  std::string path;
  std::string parent;  // an image that the new one builds on; empty: none
  image::codec compress = image::codec::none;
  bool replace = false;  // an image that is there
  bool verify = true;    // reads it again before it takes its name
};

struct snapshot_progress {
  bool verifying = false;
  std::uint64_t bytes = 0, of_bytes = 0;  // of contents; verifying: stored ones
  std::uint64_t stored = 0;               // bytes, so far
};

struct give_request {
  std::vector<std::string> tags;
  std::string to;  // where the taker listens: an absolute path, or an abstract name behind '@'
  // How long to wait for it to listen, and then for each of its answers.
  std::chrono::milliseconds wait{10'000};
};

// As migration::send_options says. Files are the process's that is asked, their paths absolute: it
// reads them with its own rights, and no key goes over the socket.
struct migrate_request {
  std::vector<std::string> tags;
  std::string to;                // "host:port"
  std::string certificate, key;  // PEM: who we are
  std::string authorities;       // PEM: whose certificates are believed, and
  std::string name;              // which of them; either these or
  std::vector<std::string> fingerprints;
  std::string records;  // a folder; empty: what server_options says
  // Zero: what server_options says, that of the last one that stayed, or a new one.
  migration::task_id task;
  std::chrono::milliseconds pause = migration::send_options().pause;
  std::uint32_t most_rounds = 30;
  std::uint32_t channels = 2;
  migration::when_it_does_not_converge otherwise =
      migration::when_it_does_not_converge::stop_and_copy;
  std::uint64_t bytes_per_second = 0;
  std::chrono::milliseconds wait{10'000};
  std::chrono::milliseconds settle{
      10'000};  // then it is undecided, until settle has been asked for
};

struct migrated {
  migration::sent_memory sent;  // without `why`, which has no texts of its own
  failure why;                  // where it is not the destination's
};

}  // namespace stillmap::control
