// Messages with file descriptors over a Unix socket, each bounded and with a deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/vmm/physical_memory.h"

namespace stillmap::handoff {

using patience = std::chrono::milliseconds;
using deadline = std::chrono::steady_clock::time_point;

struct peer {
  pid_t pid = -1;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct message {
  std::uint16_t kind = 0;
  std::vector<std::byte> body;
  std::vector<owned_fd> fds;
};

// One end of a connected stream socket. Threads: externally synchronised.
class connection {
 public:
  static constexpr std::uint16_t version = 1;
  static constexpr std::size_t most_fds = 128;  // a message; the kernel takes 253

  // Errors: invalid_argument (no Unix stream socket that is connected), the system's.
  static result<connection> adopt(owned_fd socket);
  // To who listens at `where`: a path, or an abstract name behind '@'. Tried again until somebody
  // does. Errors: invalid_argument (no such name), the system's when `wait` is over.
  static result<connection> connect(const std::string &where, patience wait = {},
                                    std::stop_token cancel = {});

  const peer &who() const { return peer_; }
  int fd() const { return socket_.get(); }  // to poll

  // Errors: busy (nothing moved for `wait`; cancelled), the system's (the other side is gone:
  //         EPIPE, ECONNRESET).
  status send(std::uint16_t kind, std::span<const std::byte> body, std::span<const int> fds,
              patience wait, std::stop_token cancel);
  // A body over `limit` is refused before memory is taken for it. All of it must be here at `by`.
  // Errors: as send, and corrupt (no message of ours, another version: value, limit = ours).
  result<message> receive(std::size_t limit, patience wait, std::stop_token cancel,
                          deadline by = deadline::max());

 private:
  connection(owned_fd s, peer p) : socket_(std::move(s)), peer_(p) {}
  status read(std::byte *to, std::size_t bytes, std::vector<owned_fd> *fds, patience wait,
              const std::stop_token &cancel, deadline by);
  owned_fd socket_;
  peer peer_;
};

// A name that others connect to; a path is taken away again. Threads: externally synchronised.
class listener {
 public:
  // Errors: busy (somebody listens there), invalid_argument (no such name), the system's.
  static result<listener> create(const std::string &where);
  listener(listener &&) noexcept = default;
  listener &operator=(listener &&) = delete;
  ~listener();
  // Errors: busy (nobody came; cancelled), the system's.
  result<connection> accept(patience wait, std::stop_token cancel = {});
  int fd() const { return socket_.get(); }  // to poll

 private:
  listener(owned_fd s, std::string path) : socket_(std::move(s)), path_(std::move(path)) {}
  owned_fd socket_;
  std::string path_;  // empty: abstract
};

}  // namespace stillmap::handoff
