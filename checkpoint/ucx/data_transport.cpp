#include "stillmap/checkpoint/ucx/data_transport.h"

#include <utility>

#include "stillmap/checkpoint/base/tcp_socket.h"
#include "stillmap/checkpoint/ucx/internal/channel.h"
#include "stillmap/checkpoint/ucx/internal/worker.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::ucx {
namespace {

using checkpoint::tcp_listener;

constexpr const char *ucx_name = "ucx";

class data_transport final : public migration::transport {
 public:
  data_transport(std::string address, std::shared_ptr<const owned_context> context)
      : address_(std::move(address)), context_(std::move(context)) {}

  result<std::unique_ptr<migration::channel>> connect(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::transport::connect", [&]() -> result<std::unique_ptr<migration::channel>> {
          STILLMAP_ASSIGN_OR_RETURN(fork_closed_fd s,
                                    checkpoint::connect_tcp(address_, clock::now() + timeout));
          return channel::create(context_, std::move(s), false, address_);
        });
  }

 private:
  const std::string address_;
  const std::shared_ptr<const owned_context> context_;
};

class data_connector final : public migration::data_connector {
 public:
  explicit data_connector(std::string transports) : transports_(std::move(transports)) {}

  std::string transport_name() const override { return ucx_name; }
  result<std::unique_ptr<migration::transport>> create_transport(
      const std::string &address) override {
    return with_host_memory(
        "migration::data_connector::create_transport",
        [&]() -> result<std::unique_ptr<migration::transport>> {
          STILLMAP_ASSIGN_OR_RETURN(const checkpoint::tcp_address at,
                                    checkpoint::parse_tcp_address(address));
          if (!is_numeric(at)) {  // a name server that does not answer would hold the migration
            return tl::unexpected(
                make_error(errc::invalid_argument, "the announced host is not written as numbers")
                    .value()
                    .about(address));
          }
          STILLMAP_ASSIGN_OR_RETURN(owned_context context, create_context(transports_));
          return std::make_unique<data_transport>(
              address, std::make_shared<const owned_context>(std::move(context)));
        });
  }

 private:
  const std::string transports_;
};

class data_acceptor final : public migration::data_acceptor {
 public:
  data_acceptor(std::shared_ptr<const owned_context> context, tcp_listener at)
      : context_(std::move(context)), at_(std::move(at)) {}

  result<std::unique_ptr<migration::channel>> accept(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::acceptor::accept", [&]() -> result<std::unique_ptr<migration::channel>> {
          STILLMAP_ASSIGN_OR_RETURN(auto c, at_.accept(clock::now() + timeout));
          return channel::create(context_, std::move(c.socket), true, std::move(c.from));
        });
  }
  std::string transport_name() const override { return ucx_name; }
  std::string address() const override { return at_.address(); }
  void shutdown() noexcept override { at_.shutdown(); }

 private:
  const std::shared_ptr<const owned_context> context_;
  const tcp_listener at_;
};

}  // namespace

result<std::unique_ptr<migration::data_connector>> create_data_connector(
    const connection_options &options) {
  return with_host_memory("ucx::create_data_connector",
                          [&]() -> result<std::unique_ptr<migration::data_connector>> {
                            // What cannot be is an error here, and not a reason for TLS at each migration.
                            STILLMAP_RETURN_IF_ERROR(create_context(options.transports));
                            return std::make_unique<data_connector>(options.transports);
                          });
}

result<std::unique_ptr<migration::data_acceptor>> create_data_acceptor(
    const std::string &address, const connection_options &options) {
  return with_host_memory(
      "ucx::create_data_acceptor", [&]() -> result<std::unique_ptr<migration::data_acceptor>> {
        STILLMAP_ASSIGN_OR_RETURN(owned_context made, create_context(options.transports));
        STILLMAP_ASSIGN_OR_RETURN(tcp_listener at, tcp_listener::create(address));
        return std::make_unique<data_acceptor>(
            std::make_shared<const owned_context>(std::move(made)), std::move(at));
      });
}

}  // namespace stillmap::ucx
