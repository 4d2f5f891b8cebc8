#include "stillmap/checkpoint/ucx/internal/worker.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::ucx {
namespace {

int errno_of(ucs_status_t s) {
  switch (s) {
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
      return ECONNRESET;
    case UCS_ERR_REJECTED:
      return ECONNREFUSED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_INVALID_ADDR:
      return EHOSTUNREACH;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
      return ETIMEDOUT;
    case UCS_ERR_NO_MEMORY:
      return ENOMEM;
    case UCS_ERR_CANCELED:
      return ECANCELED;
    case UCS_ERR_BUSY:
      return EADDRINUSE;
    default:
      return EIO;
  }
}

struct release_config {
  void operator()(ucp_config_t *c) const noexcept { api().ucp_config_release(c); }
};

tl::unexpected<error> cannot_start(ucs_status_t s) {
  return tl::unexpected(
      make_error(errc::not_supported,
                 "UCX cannot start: choose other transports (UCX_LOG_LEVEL=info lists them)")
          .value()
          .about(api().ucs_status_string(s)));
}

}  // namespace

tl::unexpected<error> ucx_error(ucs_status_t s, const char *reason) {
  return make_system_error(errno_of(s), reason, api().ucs_status_string(s));
}

result<owned_context> create_context(const std::string &transports) {
  STILLMAP_RETURN_IF_ERROR(load_library());
  ucp_config_t *read = nullptr;
  ucs_status_t s = api().ucp_config_read(nullptr, nullptr, &read);
  if (s != UCS_OK) return cannot_start(s);
  const std::unique_ptr<ucp_config_t, release_config> config(read);
  if (!transports.empty()) {
    s = api().ucp_config_modify(config.get(), "TLS", transports.c_str());
    if (s != UCS_OK) return cannot_start(s);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // a worker for each channel, on threads of their own
  ucp_context_h made = nullptr;
  s = api().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.get(), &made);
  if (s != UCS_OK) return cannot_start(s);
  return owned_context(made);
}

result<wake_up> wake_up::create() {
  wake_up out;
  out.event_ = owned_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (out.fd() < 0) return make_system_error(errno, "no event descriptor could be created");
  return out;
}

void wake_up::set() const noexcept {
  (void)!::eventfd_write(fd(), 1);
}

void wake_up::clear() const noexcept {
  eventfd_t count = 0;
  (void)!::eventfd_read(fd(), &count);
}

result<worker> worker::create(std::shared_ptr<const owned_context> context) {
  worker out;
  out.context_ = std::move(context);
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h made = nullptr;
  ucs_status_t s = api().ucp_worker_create(out.context_->get(), &params, &made);
  if (s != UCS_OK) return ucx_error(s, "UCX cannot create a worker");
  out.worker_.reset(made);
  s = api().ucp_worker_get_efd(made, &out.efd_);
  if (s != UCS_OK) return ucx_error(s, "UCX has no event descriptor");
  return out;
}

worker::~worker() = default;

bool worker::progress() const noexcept {
  // Bounded, because a peer that sends without pause would keep a caller here past its timeout.
  bool any = false;
  for (int i = 0; i < 64 && api().ucp_worker_progress(get()) != 0; ++i) any = true;
  return any;
}

result<std::vector<std::byte>> worker::address() const {
  ucp_address_t *at = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t s = api().ucp_worker_get_address(get(), &at, &bytes);
  if (s != UCS_OK) return ucx_error(s, "UCX does not say the address of a worker");
  auto out = with_host_memory([&]() -> result<std::vector<std::byte>> {
    const auto *const first = reinterpret_cast<const std::byte *>(at);
    return std::vector<std::byte>(first, first + bytes);
  });
  api().ucp_worker_release_address(get(), at);
  return out;
}

bool wait_for_event(int efd, const wake_up &wake, int socket, clock::time_point until) noexcept {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
  std::array<pollfd, 3> on{{{efd, POLLIN, 0}, {wake.fd(), POLLIN, 0}, {socket, POLLIN, 0}}};
  (void)::poll(on.data(), on.size(), static_cast<int>(std::clamp<long long>(left + 1, 0, 60'000)));
  if (on[1].revents != 0) wake.clear();
  return on[2].revents != 0;
}

}  // namespace stillmap::ucx
