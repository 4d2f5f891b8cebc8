#include "stillmap/checkpoint/publication/holder.h"

#include <atomic>
#include <optional>
#include <utility>

#include "stillmap/checkpoint/base/socket_server.h"
#include "stillmap/checkpoint/publication/internal/client_handler.h"
#include "stillmap/checkpoint/publication/internal/holder_store.h"
#include "stillmap/vmm/base/creating_process.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {

class holder::core {
 public:
  core(std::string address, holder_options options)
      : options_(std::move(options)), address_(std::move(address)) {}

  status listen() {
    checkpoint::socket_server_options options;
    options.server = "publication::holder";
    options.forbidden = "this user may not use the holder (its uid)";
    options.allow = options_.allow;
    options.refuse = refuse_client;
    options.max_connections = options_.max_connections;
    STILLMAP_ASSIGN_OR_RETURN(
        checkpoint::socket_server made,
        checkpoint::socket_server::create(
            address_, std::move(options),
            [this](checkpoint::socket_channel &with, std::atomic<bool> &claimed,
                   const std::stop_token &stop) {
              return client_handler(with, store_, options_, stop).serve(claimed);
            }));
    connections_.emplace(std::move(made));
    return {};
  }

  const std::string &address() const { return address_; }
  const holder_store &store() const { return store_; }
  const creating_process &process() const { return process_; }

 private:
  const creating_process process_;
  const holder_options options_;
  const std::string address_;
  holder_store store_;  // outlives the leases
  std::optional<checkpoint::socket_server> connections_;
};

result<holder> holder::create(const std::string &address, holder_options options) {
  return with_host_memory("holder::create", [&]() -> result<holder> {
    auto made = std::make_unique<core>(address, std::move(options));
    STILLMAP_RETURN_IF_ERROR(made->listen());
    return holder(std::move(made));
  });
}

holder::holder(std::unique_ptr<core> c) noexcept : core_(std::move(c)) {}
holder::holder(holder &&) noexcept = default;
holder::~holder() {
  if (core_ && !core_->process().is_current()) (void)core_.release();
}
const std::string &holder::address() const {
  return core_->address();
}
std::vector<held_publication> holder::publications() const {
  return core_->store().list();
}

}  // namespace stillmap::publication
