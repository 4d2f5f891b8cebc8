#include "stillmap/checkpoint/ucx/data_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "stillmap/checkpoint/ucx/internal/channel.h"
#include "stillmap/checkpoint/ucx/internal/tcp_socket.h"
#include "stillmap/checkpoint/ucx/internal/worker.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::ucx {
namespace {

class data_transport final : public migration::transport {
 public:
  data_transport(std::string address, std::shared_ptr<const owned_context> context)
      : address_(std::move(address)), context_(std::move(context)) {}

  result<std::unique_ptr<migration::channel>> connect(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::transport::connect", [&]() -> result<std::unique_ptr<migration::channel>> {
          STILLMAP_ASSIGN_OR_RETURN(fork_closed_fd s, connect_to(address_, clock::now() + timeout));
          return channel::create(context_, std::move(s), false, address_);
        });
  }

 private:
  const std::string address_;
  const std::shared_ptr<const owned_context> context_;
};

class data_acceptor final : public migration::acceptor {
 public:
  data_acceptor(std::shared_ptr<const owned_context> context, fork_closed_fd socket,
                std::string address)
      : context_(std::move(context)), socket_(std::move(socket)), address_(std::move(address)) {}

  result<std::unique_ptr<migration::channel>> accept(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::acceptor::accept", [&]() -> result<std::unique_ptr<migration::channel>> {
          const auto until = clock::now() + timeout;
          for (;;) {
            sockaddr_storage from{};
            socklen_t bytes = sizeof from;
            auto s = fork_closed_fd::create([&] {
              return ::accept4(socket_.get(), reinterpret_cast<sockaddr *>(&from), &bytes,
                               SOCK_CLOEXEC | SOCK_NONBLOCK);
            });
            if (s.get() >= 0) {
              return channel::create(context_, std::move(s), true,
                                     to_text(reinterpret_cast<sockaddr *>(&from), bytes));
            }
            const int code = errno;
            if (code == EINVAL) return make_system_error(ECANCELED, "the acceptor was shut down");
            if (code != EAGAIN && code != EINTR && code != ECONNABORTED) {
              return make_system_error(code, "accepting failed");
            }
            STILLMAP_RETURN_IF_ERROR(wait_for_socket(socket_.get(), POLLIN, until));
          }
        });
  }
  std::string address() const override { return address_; }
  void shutdown() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  const std::shared_ptr<const owned_context> context_;
  const fork_closed_fd socket_;
  const std::string address_;
};

}  // namespace

result<std::unique_ptr<migration::transport>> create_data_transport(
    const std::string &address, const connection_options &options) {
  return with_host_memory(
      "ucx::create_data_transport", [&]() -> result<std::unique_ptr<migration::transport>> {
        STILLMAP_RETURN_IF_ERROR(check_address(address));
        STILLMAP_ASSIGN_OR_RETURN(owned_context context, create_context(options.transports));
        return std::make_unique<data_transport>(
            address, std::make_shared<const owned_context>(std::move(context)));
      });
}

result<std::unique_ptr<migration::acceptor>> create_data_acceptor(
    const std::string &address, const connection_options &options) {
  return with_host_memory(
      "ucx::create_data_acceptor", [&]() -> result<std::unique_ptr<migration::acceptor>> {
        STILLMAP_ASSIGN_OR_RETURN(const addresses at, resolve(address, true));
        STILLMAP_ASSIGN_OR_RETURN(owned_context made, create_context(options.transports));
        auto s = fork_closed_fd::create(
            [&] { return ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
        const int on = 1;
        if (s.get() >= 0) ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (s.get() < 0 || ::bind(s.get(), at->ai_addr, at->ai_addrlen) != 0 ||
            ::listen(s.get(), SOMAXCONN) != 0) {
          return make_system_error(errno, "cannot listen", address);
        }
        sockaddr_storage bound{};
        socklen_t bytes = sizeof bound;
        ::getsockname(s.get(), reinterpret_cast<sockaddr *>(&bound), &bytes);
        return std::make_unique<data_acceptor>(
            std::make_shared<const owned_context>(std::move(made)), std::move(s),
            to_text(reinterpret_cast<sockaddr *>(&bound), bytes));
      });
}

}  // namespace stillmap::ucx
