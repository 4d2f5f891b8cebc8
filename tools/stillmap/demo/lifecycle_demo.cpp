// stillmap demo lifecycle: a running task is saved, handed to a second process, and migrated to a
// third one over TLS. Every byte, address and pointer is checked in each process.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/demo/child_process.h"
#include "tools/stillmap/demo/demo_commands.h"
#include "tools/stillmap/demo/demo_task.h"

namespace stillmap::tool {
namespace {

using clock = std::chrono::steady_clock;

double since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

std::string bytes(double n) {
  return format_bytes(static_cast<std::uint64_t>(n));
}

class lifecycle_demo {
 public:
  lifecycle_demo(const driver_options &driver, const device &d, const demo_folder &in)
      : driver_(driver), device_(d), in_(in) {}

  outcome<void> run() {
    // Both start at once, and each creates its context meanwhile.
    STILLMAP_ASSIGN_OR_RETURN(auto second, child_process::start("second", in_, driver_));
    STILLMAP_ASSIGN_OR_RETURN(auto third, child_process::start("third", in_, driver_));
    STILLMAP_RETURN_IF_ERROR(second.read_line());
    STILLMAP_RETURN_IF_ERROR(third.read_line());
    STILLMAP_RETURN_IF_ERROR(begin());
    STILLMAP_RETURN_IF_ERROR(save());
    STILLMAP_RETURN_IF_ERROR(hand_over(second));
    return migrate(second, third);
  }
  const task_check &seen() const { return seen_; }

 private:
  template <class... Values>
  static void line(const char *what, fmt::format_string<Values...> text, Values &&...values) {
    fmt::print("  {:<9} {}\n", what, fmt::format(text, std::forward<Values>(values)...));
    std::fflush(stdout);
  }

  outcome<void> begin() {
    STILLMAP_ASSIGN_OR_RETURN(auto made, demo_task::create(device_));
    task_.emplace(std::move(made));
    for (int i = 0; i < 3; ++i) {
      STILLMAP_RETURN_IF_ERROR(task_->grow(512));
    }
    if (task_->head() != device_address(task_begins_at)) {
      return fail(exit_failed,
                  fmt::format("the addresses from {:#x} on are in use", task_begins_at));
    }
    STILLMAP_ASSIGN_OR_RETURN(seen_, check_task(device_, task_->head()));
    line("starts",
         "at {:#x}: a vector that grew to {} cells, an allocator's {} blocks that point to each "
         "other: {}",
         task_begins_at, seen_.cells, seen_.blocks, format_bytes(seen_.bytes));
    return {};
  }

  outcome<void> work_for(std::chrono::milliseconds time) {
    STILLMAP_ASSIGN_OR_RETURN(auto work, running_task::start(device_, task_->head(), seen_.cells));
    std::this_thread::sleep_for(time);
    STILLMAP_ASSIGN_OR_RETURN(const auto writes, work->stop());
    seen_.writes += writes;
    return {};
  }

  // Saves twice, with some work in between; the second image holds only the changes.
  outcome<void> save() {
    snapshot::save_options options;
    options.image.chunk_bytes = 256 << 10;
    auto began = clock::now();
    STILLMAP_ASSIGN_OR_RETURN(const auto first,
                              snapshot::save(device_, task_tags, in_.at("first.smi"), options));
    line("saved", "{} in {}, read back and verified", format_bytes(first.stored_bytes),
         human_seconds(since(began)));
    STILLMAP_RETURN_IF_ERROR(work_for(std::chrono::milliseconds(200)));
    STILLMAP_ASSIGN_OR_RETURN(options.image.parent, image::reader::open(in_.at("first.smi")));
    began = clock::now();
    STILLMAP_ASSIGN_OR_RETURN(const auto later,
                              snapshot::save(device_, task_tags, in_.at("later.smi"), options));
    STILLMAP_ASSIGN_OR_RETURN(auto reader, child_process::start("reader", in_, driver_));
    STILLMAP_ASSIGN_OR_RETURN(const auto there, reader.read_line());
    STILLMAP_RETURN_IF_ERROR(check("restored", there));
    line("", "after {} writes again: {} written, {} unchanged; restored in another process",
         seen_.writes - seen_.cells, format_bytes(later.stored_bytes),
         format_bytes(later.parent_chunks * (256 << 10)));
    return {};
  }

  outcome<void> hand_over(child_process &second) {
    STILLMAP_ASSIGN_OR_RETURN(
        auto to, handoff::connection::connect(in_.handoff_socket(), std::chrono::seconds(30)));
    const driver_counts before = device_.driver().counts();
    clock::time_point stopped;
    handoff::handoff_options options;
    options.quiesce = [&]() -> status {
      stopped = clock::now();
      return {};
    };
    const auto began = clock::now();
    STILLMAP_ASSIGN_OR_RETURN(const auto sent, handoff::send(device_, to, task_tags, options));
    const double downtime = since(stopped), all = since(began);
    const driver_counts made = device_.driver().counts() - before;
    STILLMAP_ASSIGN_OR_RETURN(const auto there, second.read_line());
    STILLMAP_RETURN_IF_ERROR(check("handed over", there));
    line("handed",
         "over to a second process: {} in {} pages, {} bytes copied, in {}; stopped for {}",
         format_bytes(sent.bytes), sent.pages,
         made.bytes_to_host + made.bytes_to_device + made.bytes_on_device, human_seconds(all),
         human_seconds(downtime));
    return {};
  }

  outcome<void> migrate(child_process &second, child_process &third) {
    STILLMAP_ASSIGN_OR_RETURN(report_line s, second.read_line());
    seen_.writes += static_cast<std::uint64_t>(s["writes"]);
    STILLMAP_ASSIGN_OR_RETURN(const auto there, third.read_line());
    STILLMAP_RETURN_IF_ERROR(check("migrated", there));
    line("migrated",
         "to a third one over TLS, during {} writes: {} sent in {} rounds, {} skipped as zero, {} "
         "as unchanged; in {}, stopped for {}",
         s["writes"], bytes(s["sent"]), s["rounds"], bytes(s["zero"]), bytes(s["unchanged"]),
         human_seconds(s["elapsed"]), human_seconds(s["downtime"]));
    return {};
  }

  // Compares the findings of a child process with what it should find.
  outcome<void> check(const char *when, report_line there) const {
    if (there == line_of(seen_)) return {};
    return fail(exit_differs,
                fmt::format("{}: found {} cells, {} blocks and {} writes instead of {}, {} and {}",
                            when, there["cells"], there["blocks"], there["writes"], seen_.cells,
                            seen_.blocks, seen_.writes));
  }

  const driver_options &driver_;
  const device &device_;
  const demo_folder &in_;
  std::optional<demo_task> task_;
  task_check seen_;
};

}  // namespace

outcome<exit_status> run_lifecycle_demo(const lifecycle_demo_options &o) {
  if (!o.part.empty()) return run_part(o.part, demo_folder(o.folder), o.driver);
  STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(o.driver));
  const driver &drv = d.driver();
  if (!d.capabilities().vmm || !d.capabilities().posix_fd_export || !keeps_content(drv)) {
    return fail(exit_refused, fmt::format("{} has no pages that can be exported to another process",
                                          describe(drv, d)));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto in, demo_folder::create());
  fmt::print("A task on {}\n", describe(drv, d));
  lifecycle_demo demo(o.driver, d, in);
  STILLMAP_RETURN_IF_ERROR(demo.run());
  fmt::print(
      "stillmap: ok: one task, three processes; {} checked in each, all addresses and pointers "
      "unchanged\n",
      human_and_exact(demo.seen().bytes));
  return exit_ok;
}

}  // namespace stillmap::tool
