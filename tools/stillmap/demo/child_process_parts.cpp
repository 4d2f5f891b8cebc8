// The parts of the lifecycle demo that run in child processes.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/demo/child_process.h"
#include "tools/stillmap/demo/demo_task.h"

namespace stillmap::tool {
namespace {

using namespace std::chrono_literals;

constexpr device_address first_block{task_begins_at};
constexpr std::chrono::milliseconds timeout = 60s;

outcome<task_check> check_and_report(const device &d) {
  STILLMAP_ASSIGN_OR_RETURN(const auto seen, check_task(d, first_block));
  print_line(line_of(seen));
  return seen;
}

// Waits until the parent process kills this one.
outcome<exit_status> wait_for_end() {
  for (;;) ::pause();
}

// Restores the image at the same addresses and checks it.
outcome<exit_status> restore_and_check(const demo_folder &in, const device &d) {
  STILLMAP_ASSIGN_OR_RETURN(const auto restored, snapshot::restore(d, in.at("later.smi")));
  STILLMAP_RETURN_IF_ERROR(check_and_report(d));
  return exit_ok;
}

// Receives the task by a handoff, runs it, and migrates it to the third process meanwhile.
outcome<exit_status> receive_and_migrate(const demo_folder &in, const device &d) {
  STILLMAP_ASSIGN_OR_RETURN(auto at, handoff::listener::create(in.handoff_socket()));
  print_line({{"ready", 1}});
  STILLMAP_ASSIGN_OR_RETURN(auto from, at.accept(timeout));
  STILLMAP_ASSIGN_OR_RETURN(const auto memory, handoff::receive(d, from));
  STILLMAP_ASSIGN_OR_RETURN(const auto seen, check_and_report(d));

  std::string where;
  for (int i = 0; i < 6000 && where.empty(); ++i) {
    std::ifstream(in.at("where")) >> where;
    if (where.empty()) std::this_thread::sleep_for(10ms);
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto credentials, in.credentials("second", "third"));
  STILLMAP_ASSIGN_OR_RETURN(const auto to, migration::create_tls_transport(where, credentials));
  STILLMAP_ASSIGN_OR_RETURN(auto work, running_task::start(d, first_block, seen.cells));
  outcome<std::uint64_t> writes = std::uint64_t{0};
  migration::send_options options;
  options.records = in.at("second.records");
  options.quiesce = [&]() -> status {
    writes = work->stop();
    return {};
  };
  const migration::sent_memory sent = migration::sender(d, task_tags, options).send(*to);
  if (!writes) return tl::unexpected(writes.error());
  if (sent.owner != migration::owner::destination) return fail(*sent.failure);
  print_line({{"bytes", static_cast<double>(sent.bytes)},
              {"sent", static_cast<double>(sent.bytes_sent)},
              {"zero", static_cast<double>(sent.zero_bytes)},
              {"unchanged", static_cast<double>(sent.unchanged_bytes)},
              {"rounds", static_cast<double>(sent.rounds)},
              {"elapsed", sent.elapsed.count()},
              {"downtime", sent.downtime.count()},
              {"writes", static_cast<double>(*writes)}});
  return wait_for_end();
}

// Receives the task by a migration.
outcome<exit_status> receive(const demo_folder &in, const device &d) {
  STILLMAP_ASSIGN_OR_RETURN(const auto credentials, in.credentials("third", "second"));
  STILLMAP_ASSIGN_OR_RETURN(auto at, migration::create_tls_acceptor("127.0.0.1:0", credentials));
  migration::receive_options options;
  options.records = in.at("third.records");
  STILLMAP_ASSIGN_OR_RETURN(auto receiver, migration::receiver::create(d, std::move(at), options));
  std::ofstream(in.at("where.new")) << receiver.address() << '\n';
  std::rename(in.at("where.new").c_str(), in.at("where").c_str());
  print_line({{"ready", 1}});
  const auto came = receiver.receive(timeout);
  if (!came) return fail(receiver.last_failure().value_or(came.error()));
  STILLMAP_RETURN_IF_ERROR(check_and_report(d));
  return wait_for_end();
}

}  // namespace

outcome<exit_status> run_part(const std::string &part, const demo_folder &in,
                              const driver_options &driver) {
  STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(driver));
  if (part == "reader") return restore_and_check(in, d);
  if (part == "second") return receive_and_migrate(in, d);
  if (part == "third") return receive(in, d);
  return fail(exit_usage, fmt::format("the lifecycle demo has no part '{}'", part));
}

}  // namespace stillmap::tool
