// What the processes of a journey do.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/demo/child_process.h"
#include "tools/stillmap/demo/demo_task.h"
#include "tools/stillmap/image/image_options.h"

namespace stillmap::tool {
namespace {

using namespace std::chrono_literals;

constexpr device_address head{task_begins_at};
constexpr std::chrono::milliseconds patience = 60s;

outcome<device> device_of(const driver_options &where) {
  auto drv = choose_driver(where.driver);
  if (!drv) return tl::unexpected(drv.error());
  return open_device(**drv, where.device);
}

outcome<task_check> check_and_say(const device &d) {
  const auto seen = check_task(d, head);
  if (!seen) return seen;
  say({{"bytes", static_cast<double>(seen->bytes)},
       {"cells", static_cast<double>(seen->cells)},
       {"blocks", static_cast<double>(seen->blocks)},
       {"writes", static_cast<double>(seen->writes)}});
  return seen;
}

// Until whoever started it ends it.
outcome<exit_status> stay() {
  for (;;) ::pause();
}

// Restores an image where it was saved, checks it, and is done.
outcome<exit_status> restore_there(const journey_folder &in, const device &d) {
  const auto restored = snapshot::restore(d, in.at("later.smi"));
  if (!restored) return fail(restored.error());
  if (const auto seen = check_and_say(d); !seen) return tl::unexpected(seen.error());
  return exit_ok;
}

// Takes the task over, works on, and moves it to the third while it works.
outcome<exit_status> take_and_send(const journey_folder &in, const device &d) {
  auto at = handoff::listener::create(in.meeting_place());
  if (!at) return fail(at.error());
  say({{"ready", 1}});
  auto from = at->accept(patience);
  if (!from) return fail(from.error());
  const auto mine = handoff::take(d, *from);
  if (!mine) return fail(mine.error());
  const auto seen = check_and_say(d);
  if (!seen) return tl::unexpected(seen.error());

  std::string where;
  for (int i = 0; i < 6000 && where.empty(); ++i) {
    std::ifstream(in.at("where")) >> where;
    if (where.empty()) std::this_thread::sleep_for(10ms);
  }
  const auto believed = in.credentials("second", "third");
  if (!believed) return tl::unexpected(believed.error());
  const auto to = migration::tls_to(where, *believed);
  if (!to) return fail(to.error());
  auto work = task_at_work::start(d, head, seen->cells);
  if (!work) return tl::unexpected(work.error());
  outcome<std::uint64_t> writes = std::uint64_t{0};
  migration::send_options how;
  how.records = in.at("second.records");
  how.quiesce = [&]() -> status {
    writes = work->stop();
    return {};
  };
  const migration::sent_memory sent = migration::sender(d, task_tags, how).send(**to);
  if (!writes) return tl::unexpected(writes.error());
  if (sent.whose != migration::whose::destination) return fail(*sent.why);
  say({{"bytes", static_cast<double>(sent.bytes)},
       {"sent", static_cast<double>(sent.bytes_sent)},
       {"zero", static_cast<double>(sent.zero_bytes)},
       {"clean", static_cast<double>(sent.clean_bytes)},
       {"rounds", static_cast<double>(sent.rounds)},
       {"seconds", sent.seconds},
       {"pause", sent.pause},
       {"writes", static_cast<double>(*writes)}});
  return stay();
}

// Where the task arrives.
outcome<exit_status> receive(const journey_folder &in, const device &d) {
  const auto believed = in.credentials("third", "second");
  if (!believed) return tl::unexpected(believed.error());
  auto at = migration::tls_at("127.0.0.1:0", *believed);
  if (!at) return fail(at.error());
  migration::receive_options how;
  how.records = in.at("third.records");
  auto receiver = migration::receiver::start(d, std::move(*at), how);
  if (!receiver) return fail(receiver.error());
  std::ofstream(in.at("where.new")) << receiver->where() << '\n';
  std::rename(in.at("where.new").c_str(), in.at("where").c_str());
  say({{"ready", 1}});
  const auto came = receiver->receive(patience);
  if (!came) return fail(receiver->last_failure().value_or(came.error()));
  if (const auto seen = check_and_say(d); !seen) return tl::unexpected(seen.error());
  return stay();
}

}  // namespace

outcome<exit_status> run_station(const std::string &part, const journey_folder &in,
                                 const driver_options &where) {
  const auto d = device_of(where);
  if (!d) return tl::unexpected(d.error());
  if (part == "reader") return restore_there(in, *d);
  if (part == "second") return take_and_send(in, *d);
  if (part == "third") return receive(in, *d);
  return fail(exit_usage, fmt::format("a journey has no station '{}'", part));
}

}  // namespace stillmap::tool
