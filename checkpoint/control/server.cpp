#include "stillmap/checkpoint/control/server.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "stillmap/checkpoint/base/socket_server.h"
#include "stillmap/checkpoint/control/internal/connection_handler.h"
#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/vmm/base/creating_process.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {

class server::core {
 public:
  core(const device &d, std::string address, server_options options)
      : options_(std::move(options)), address_(std::move(address)), executor_(d, options_) {}

  status listen() {
    checkpoint::socket_server_options options;
    options.server = "control::server";
    options.forbidden = "this user may not control the process (its uid)";
    options.allow = options_.allow;
    options.refuse = [this](checkpoint::socket_channel &with, const error &why) {
      record_refusal(with.peer(), why);
      refuse(with, why);
    };
    options.max_connections = options_.max_connections;
    STILLMAP_ASSIGN_OR_RETURN(
        checkpoint::socket_server made,
        checkpoint::socket_server::create(
            address_, std::move(options),
            [this](checkpoint::socket_channel &with, std::atomic<bool> &claimed,
                   const std::stop_token &stop) -> checkpoint::socket_server::lease {
              connection_handler(with, address_, executor_, options_, claimed, stop).serve();
              return nullptr;
            }));
    connections_.emplace(std::move(made));
    return {};
  }

  const std::string &address() const { return address_; }
  executor &runs() { return executor_; }
  const creating_process &process() const { return process_; }

 private:
  // On the thread that accepts connections. Any user can connect, as often as it likes: at most one a second has a
  // record.
  void record_refusal(const checkpoint::peer_credentials &client, const error &why) noexcept {
    if (!options_.audit) return;
    const auto now = std::chrono::steady_clock::now();
    ++refused_;
    if (now < next_refusal_record_) return;
    (void)with_host_memory([&]() -> status {
      audited_request r;
      r.client = client;
      r.task = address_;
      r.failed = why;
      r.refused_before = refused_ - 1;
      options_.audit(r);
      refused_ = 0;
      next_refusal_record_ = now + std::chrono::seconds(1);
      return {};
    });
  }

  const creating_process process_;
  const server_options options_;
  const std::string address_;
  executor executor_;
  std::uint64_t refused_ =
      0;  // since the last record; of the thread that accepts connections, as the next
  std::chrono::steady_clock::time_point next_refusal_record_{};
  std::optional<checkpoint::socket_server> connections_;  // destroyed first
};

result<server> server::create(const device &d, const std::string &address, server_options options) {
  return with_host_memory("control::server::create", [&]() -> result<server> {
    auto made = std::make_unique<core>(d, address, std::move(options));
    STILLMAP_RETURN_IF_ERROR(made->listen());
    return server(std::move(made));
  });
}

server::server(std::unique_ptr<core> c) : core_(std::move(c)) {}
server::server(server &&) noexcept = default;
server::~server() {
  if (core_ && !core_->process().is_current()) (void)core_.release();
}
const std::string &server::address() const {
  return core_->address();
}
job_status server::job() const {
  return core_->runs().job();
}
result<request_kind> server::abort() {
  return with_host_memory("control::server::abort", [&] { return core_->runs().abort({}); });
}

}  // namespace stillmap::control
