// UCX's context and worker, with owners, and its errors.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "stillmap/checkpoint/ucx/internal/library.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::ucx {

using clock = std::chrono::steady_clock;

// Errors: the system's, by the status; the subject is UCX's text.
tl::unexpected<error> ucx_error(ucs_status_t s, const char *reason);

struct context_cleanup {
  void operator()(ucp_context_h c) const noexcept { api().ucp_cleanup(c); }
};
using owned_context = std::unique_ptr<std::remove_pointer_t<ucp_context_h>, context_cleanup>;
// Errors: not_supported.
result<owned_context> create_context(const std::string &transports);

// Wakes a thread in poll().
class wake_up {
 public:
  // Errors: the system's.
  static result<wake_up> create();
  int fd() const { return event_.get(); }
  void set() const noexcept;
  void clear() const noexcept;

 private:
  owned_fd event_;
};

// Threads: externally synchronised, but efd(), which any thread may poll.
class worker {
 public:
  // `context` outlives it.
  // Errors: the system's.
  static result<worker> create(std::shared_ptr<const owned_context> context);
  worker(worker &&) noexcept = default;
  worker &operator=(worker &&) = delete;
  ~worker();

  ucp_worker_h get() const { return worker_.get(); }
  int efd() const { return efd_; }
  // Its address, which a peer needs to connect to it.
  // Errors: the system's; out of memory.
  result<std::vector<std::byte>> address() const;
  // Runs what is due: callbacks of requests and endpoints. Returns whether anything was.
  bool progress() const noexcept;
  // Whether efd() becomes readable with the next event. False: progress() has something to do.
  bool arm() const noexcept { return api().ucp_worker_arm(get()) != UCS_ERR_BUSY; }

 private:
  struct destroy {
    void operator()(ucp_worker_h w) const noexcept { api().ucp_worker_destroy(w); }
  };
  worker() = default;

  std::shared_ptr<const owned_context> context_;
  std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, destroy> worker_;
  int efd_ = -1;
};

// Waits for an event of `efd`, for `wake`, for the end of what the peer sends on `socket`, or until
// `until`. Returns whether that end, or anything else, has come on the socket.
bool wait_for_event(int efd, const wake_up &wake, int socket, clock::time_point until) noexcept;

}  // namespace stillmap::ucx
