// Serves one client of a holder: receives a request, carries it out, replies.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>

#include "stillmap/checkpoint/publication/holder_options.h"
#include "stillmap/checkpoint/publication/internal/holder_store.h"
#include "stillmap/checkpoint/publication/internal/messages.h"

namespace stillmap::publication {

// Tells a client that it is not served. Best effort: it need not read it.
void refuse_client(checkpoint::socket_channel &with, const error &why) noexcept;

class client_handler {
 public:
  client_handler(checkpoint::socket_channel &with, holder_store &store,
                 const holder_options &options, const std::stop_token &stop)
      : with_(with),
        store_(store),
        options_(options),
        stop_(stop),
        messages_(with, options.timeout, stop) {}

  // Serves one request, or a claim and then a publication. Returns the lease of a reader that has attached.
  // No input of the client ends the process, nor does a lack of host memory.
  std::shared_ptr<const void> serve(std::atomic<bool> &claimed) noexcept;

 private:
  using lease = std::shared_ptr<holder_store::lease>;
  result<lease> serve_request(std::atomic<bool> &claimed);
  result<lease> attach(const attach_request &r);
  status send_memory(const holder_store::lease &to);
  status serve_claim(const holder_store::claim &held);
  status publish(std::span<const std::byte> body);
  // Counts descriptors that are about to come, unless the process may not open them.
  result<std::shared_ptr<holder_store::admission>> admit_descriptors(std::size_t pages);
  // Fails where a reader more would leave no descriptor for further clients.
  status check_room_for_reader() const;
  bool client_is_gone() const;
  void reached(holder_step s) const {
    if (options_.on_step) options_.on_step(s);
  }

  checkpoint::socket_channel &with_;
  holder_store &store_;
  const holder_options &options_;
  const std::stop_token &stop_;
  message_stream messages_;
};

}  // namespace stillmap::publication
