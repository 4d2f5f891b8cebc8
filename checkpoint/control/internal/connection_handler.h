// One who asks, from the request to its answer. Internal to server.
#pragma once

#include <chrono>
#include <stop_token>

#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/checkpoint/control/internal/messages.h"

namespace stillmap::control {

// Best effort: whoever asks for what it does not get need not listen.
void turn_away(handoff::connection &with, const failure &why);

class asker {
 public:
  asker(handoff::connection with, const server_options &how, operations &does, std::stop_token stop)
      : with_(std::move(with)), how_(how), does_(does), stop_(std::move(stop)) {}

  // One request, one answer. Whatever comes in: the process goes on.
  void serve();

 private:
  outcome<bytes> answer(const handoff::message &m);
  outcome<migrated> migrate(const migrate_request &r);
  bool tell(const snapshot_progress &p);
  bool say(kind k, const bytes &body, bool at_once);
  bool is_gone() const;

  handoff::connection with_;
  const server_options &how_;
  operations &does_;
  const std::stop_token stop_;
  std::chrono::steady_clock::time_point told_{};
};

}  // namespace stillmap::control
