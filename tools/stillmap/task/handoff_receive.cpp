// stillmap task handoff receive: receives memory from another process, and holds it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/hold.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

void print(const handoff_receive_options &o, const checkpoint::memory_layout &l, int from,
           const std::string &control) {
  if (o.json) {
    json_writer json;
    json.begin_object().field("from", from).field("bytes", l.bytes());
    blocks_json(json, l);
    control.empty() ? json.nothing("control") : json.field("control", control);
    fmt::print("{}", json.end().text());
  } else {
    fmt::print("{}", blocks_table(l));
    fmt::print("stillmap: ok: {} from process {}; {}\n", format_bytes(l.bytes()), from,
               control.empty() ? "freed" : "held, control socket " + control);
  }
  std::fflush(stdout);
}

outcome<exit_status> receive_and_hold(const handoff_receive_options &o) {
  if (!o.hold && !o.save.empty()) return fail(exit_usage, "either --free or --save");
  if (!o.hold && !o.control.empty()) return fail(exit_usage, "either --free or --control");
  STILLMAP_RETURN_IF_ERROR(check_save(o.save));
  STILLMAP_ASSIGN_OR_RETURN(auto waiter, signal_waiter::create());
  signal_waiter &end = *waiter;
  STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(o.driver));
  std::optional<reserved_control> control;
  if (o.hold) {
    STILLMAP_ASSIGN_OR_RETURN(
        auto reserved, reserve_control(d, o.control.empty() ? o.socket + ".control" : o.control));
    control.emplace(std::move(reserved));
  }
  std::optional<checkpoint::restored_memory> memory;
  int from = -1;
  {
    STILLMAP_ASSIGN_OR_RETURN(auto at, about(handoff::listener::create(o.socket), o.socket));
    fmt::print(stderr, "receive: waiting at {}\n", o.socket);
    const auto until = std::chrono::steady_clock::now() + milliseconds_of(o.timeout);
    while (!memory) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      STILLMAP_ASSIGN_OR_RETURN(
          auto sender,
          about(at.accept(std::max(left, std::chrono::milliseconds(0)), end.token()), o.socket));
      from = sender.peer().pid;
      handoff::handoff_options options;
      options.cancel = end.token();
      bool offered = false;
      options.on_step = [&](handoff::step s) {
        offered = offered || s == handoff::step::layout_received;
      };
      auto received = about(handoff::receive(d, sender, options), o.socket);
      if (received) {
        memory.emplace(std::move(*received));
      } else if (offered || end.token().stop_requested()) {
        return tl::unexpected(received.error());
      } else {
        // Anybody may connect: one that offers no memory does not end the wait for one that does.
        fmt::print(stderr, "receive: process {} offers no memory: {}\n", from,
                   received.error().line);
      }
    }
  }
  if (!o.hold) {
    print(o, memory->layout(), from, "");
    return exit_ok;
  }
  hold_options held;
  held.save = o.save;
  held.ready = [&](const std::string &at) { print(o, memory->layout(), from, at); };
  return hold(d, *memory, std::move(*control), std::move(held), end);
}

}  // namespace

outcome<exit_status> run_handoff_receive(const handoff_receive_options &o) {
  return nothing_to_save_is_ok(receive_and_hold(o), o.save);
}

}  // namespace stillmap::tool
