// Requests to a controlled process, and its responses. docs/control.md
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  handoff,
  migrate,
  abort,
  resolve,
  restore,
};
const char *name_of(request_kind k) noexcept;

// All blocks with one tag.
struct tag_status {
  std::string tag;  // empty: blocks without a tag
  std::uint64_t blocks = 0;
  std::uint64_t reserved_bytes = 0;  // of address space, as the next two
  std::uint64_t mapped_bytes = 0;
  std::uint64_t suspended_bytes = 0;
  // Where the contents of suspended memory are, if the server suspended it.
  std::optional<checkpoint::backing_store> store;
};

// What the application knows of its memory on the device. Bytes.
struct memory_figures {
  std::uint64_t allocated = 0;  // in blocks that it uses
  std::uint64_t cached = 0;     // mapped, and kept for later requests
  std::uint64_t evictable = 0;  // what it gives to others that ask, cached memory left out
  std::uint64_t limit = 0;      // what it may have; 0: no limit
  std::string quota;            // the shared quota that it takes part in; empty: none
};

// The request that is being carried out.
struct job_status {
  request_kind request = request_kind::none;
  std::chrono::milliseconds elapsed{0};
  // Bytes of contents; of a migration, those of the current round. 0: unknown.
  std::uint64_t bytes = 0, total_bytes = 0;
  // Only of a migration.
  std::optional<migration::step> step;
  std::uint64_t round = 0, bytes_sent = 0;
  bool in_doubt = false;  // the migration has ended, and its outcome is unknown: resolve it
};

struct process_status {
  pid_t pid = 0;
  std::string device;
  int ordinal = 0;
  std::array<unsigned char, 16> uuid{};
  std::uint64_t page_bytes = 0;
  std::uint64_t memory_total = 0, memory_free = 0;  // of the device; 0: unknown
  std::vector<tag_status> tags;                     // ordered by tag
  // Tags that the response has no room for, and their memory: `tags` is cut short.
  std::uint64_t omitted_tags = 0, omitted_mapped_bytes = 0, omitted_suspended_bytes = 0;
  std::uint64_t published_bytes = 0;     // of mapped memory that a holder has for other processes
  std::optional<memory_figures> memory;  // nullopt: the application does not say
  job_status job;
};

// A request names the tags that it is about, or asks for `all`: then it names none, and the process
// takes all tags that it has at that moment. (Those of a status may be cut short.)

struct suspend_request {
  std::string tag{};
  checkpoint::backing_store store = checkpoint::backing_store::pinned_host;
  // For backing_store::file: an absolute path. Empty: the process's $TMPDIR, or /tmp.
  std::string directory{};
  bool all = false;  // every tag that has mapped memory
};

// Paths are absolute; the controlled process reads and writes them with its own rights, and no key
// is sent over the socket.
struct snapshot_request {
  std::vector<std::string> tags{};
  std::string path{};
  std::string parent{};  // an image that the new one builds on; empty: none
  image::codec compress = image::codec::none;
  bool replace = false;  // replaces an existing image
  bool verify = true;    // reads the image back before it gets its name
  // Files with a key that encrypts the image (and its parent), and with one that signs it: 32 bytes,
  // or 64 hexadecimal digits. Empty: neither.
  std::string key{}, sign_with{};
  bool force = false;  // replaces an image even if others build on it
  bool all = false;
};

struct snapshot_progress {
  bool verifying = false;
  std::uint64_t bytes = 0, total_bytes = 0;  // of contents; while verifying: as stored
  std::uint64_t stored = 0;                  // bytes written so far
};

// Writes the contents of an image into memory that the process has mapped at its addresses. The
// controlled process reads the files with its own rights, and no key is sent over the socket.
struct restore_request {
  std::vector<std::string> tags{};
  std::string path{};  // absolute, as the key
  std::string key{};   // a file with the key of an encrypted image; empty: it is not encrypted
  bool all = false;    // all memory of the image
};

struct handoff_request {
  std::vector<std::string> tags{};
  // The socket of the receiving process: an absolute path, or an abstract name after '@'.
  std::string to{};
  // How long to wait until it listens, and then for each of its replies.
  std::chrono::milliseconds timeout{10'000};
  bool all = false;
};

// As migration::send_options. Paths are absolute; the controlled process reads the files with its
// own rights, and no key is sent over the socket.
struct migrate_request {
  std::vector<std::string> tags{};
  std::string to{};  // "host:port"
  // PEM files, as migration::credentials.
  std::string certificate{}, key{}, authorities{};
  std::string name{};
  std::vector<std::string> fingerprints{};
  // A directory. Empty: server_options::records.
  std::string records{};
  // Zero: server_options::id; else the task of the last migration that failed; else a new id.
  migration::task_id task{};
  std::chrono::milliseconds max_downtime = migration::send_options().max_downtime;
  std::uint32_t max_rounds = 30;
  std::uint32_t channels = 2;
  migration::no_convergence on_no_convergence = migration::no_convergence::stop_and_copy;
  std::uint64_t bytes_per_second = 0;
  std::chrono::milliseconds timeout{10'000};
  std::chrono::milliseconds resolve_timeout{10'000};
  // The group that the task moves with, and "host:port" of its decider, to which the same credentials lead. Zero: none.
  migration::group_id group{};
  std::string decider{};
  std::chrono::milliseconds group_timeout = migration::group_membership().timeout;
  // Data channels use TLS, whatever server_options::data_connector and the destination have.
  bool only_tls = false;
  bool all = false;
};

}  // namespace stillmap::control
