#include "tools/stillmap/task/handoff_receive.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/task/hold.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

void print(const take_command &o, const checkpoint::memory_layout &l, int from,
           const std::string &control) {
  if (o.json) {
    json_writer json;
    json.begin_object().field("from", from).field("bytes", std::uint64_t{l.bytes()});
    blocks_json(json, l);
    if (control.empty()) {
      json.nothing("control");
    } else {
      json.field("control", control);
    }
    fmt::print("{}\n", json.end().text());
  } else {
    fmt::print("{}", blocks_table(l));
    fmt::print("stillmap: ok: {} from process {}{}\n", human(l.bytes()), from,
               control.empty() ? "; given back to the device"
                               : fmt::format("; held, to be asked at {}", control));
  }
  std::fflush(stdout);
}

}  // namespace

outcome<exit_status> run_take(const take_command &o) {
  auto told = until_told::create();
  if (!told) return tl::unexpected(told.error());
  until_told &end = **told;
  const auto drv = choose_driver(o.where.driver);
  if (!drv) return tl::unexpected(drv.error());
  const auto d = open_device(**drv, o.where.device);
  if (!d) return tl::unexpected(d.error());
  std::optional<checkpoint::restored_memory> memory;
  int from = -1;
  {
    auto at = handoff::listener::create(o.socket);
    if (!at) return fail(at.error());
    auto giver = at->accept(milliseconds_of(o.wait), end.told());
    if (!giver) return fail(giver.error());
    from = giver->who().pid;
    handoff::handoff_options how;
    how.cancel = end.told();
    auto taken = handoff::take(*d, *giver, how);
    if (!taken) return fail(taken.error());
    memory.emplace(std::move(*taken));
  }
  if (!o.hold) {
    print(o, memory->layout(), from, "");
    return exit_ok;
  }
  const std::string where = o.control.empty() ? o.socket + ".control" : o.control;
  hold(*d, *memory, where, {}, end, [&] { print(o, memory->layout(), from, where); });
  return exit_ok;
}

}  // namespace stillmap::tool
