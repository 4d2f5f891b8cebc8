// Handles one connection: reads a request, runs it, replies.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/control/internal/request_record.h"

namespace stillmap::control {

// Replies with an error. Best effort: the client need not read it.
void refuse(checkpoint::socket_channel &with, const error &why) noexcept;

class connection_handler {
 public:
  // `claimed` becomes true once the request has come. Where the server was faster to set it, none is
  // carried out.
  connection_handler(checkpoint::socket_channel &with, const std::string &address, executor &runs,
                     const server_options &options, std::atomic<bool> &claimed,
                     std::stop_token stop)
      : with_(with),
        address_(address),
        record_(options.audit),
        executor_(runs),
        options_(options),
        claimed_(claimed),
        stop_(std::move(stop)) {}

  // Serves one request. No input of the client terminates the process, nor does a lack of host
  // memory.
  void serve() noexcept;

 private:
  void serve_request();
  result<bytes> respond(const checkpoint::socket_message &m);
  // Calls run(stop): `stop` is requested once the client is gone, or the server is being destroyed.
  template <class T>
  result<T> while_connected(const std::function<result<T>(std::stop_token)> &run);
  bool report(const snapshot_progress &p);
  void send_progress(kind k, const auto &p, bool at_once) noexcept;
  bool client_is_gone() const;

  checkpoint::socket_channel &with_;
  const std::string &address_;
  request_record record_;
  executor &executor_;
  const server_options &options_;
  std::atomic<bool> &claimed_;
  const std::stop_token stop_;
  std::chrono::steady_clock::time_point last_progress_{};
};

}  // namespace stillmap::control
