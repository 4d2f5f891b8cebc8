// stillmap journey: a task at work is saved, handed to a second process, and moved to a third over
// the network, and every byte, address and pointer is checked at each station.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/demo/child_process.h"
#include "tools/stillmap/demo/demo_task.h"
#include "tools/stillmap/image/image_options.h"

namespace stillmap::tool {
namespace {

using clock = std::chrono::steady_clock;

struct journey_options {
  driver_options driver;
  std::string part, folder;  // of a station
};

double since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

std::string bytes(double n) {
  return human(static_cast<std::uint64_t>(n));
}

class journey {
 public:
  journey(const driver_options &where, const device &d, const journey_folder &in)
      : where_(where), device_(d), in_(in) {}

  outcome<void> run() {
    auto second = station::start("second", in_, where_),
         third = station::start("third", in_, where_);
    for (auto *const s : {&second, &third}) {
      if (!*s) return tl::unexpected(s->error());
      if (const auto ready = (*s)->listen(); !ready) return tl::unexpected(ready.error());
    }
    if (auto done = begin(); !done) return done;
    if (auto done = save(); !done) return done;
    if (auto done = hand_over(*second); !done) return done;
    return move(*second, *third);
  }
  const task_check &seen() const { return seen_; }

 private:
  static void line(const char *what, const std::string &text) {
    fmt::print("  {:<9} {}\n", what, text);
    std::fflush(stdout);
  }

  outcome<void> begin() {
    auto made = travelling_task::create(device_);
    if (!made) return tl::unexpected(made.error());
    task_.emplace(std::move(*made));
    for (int i = 0; i < 3; ++i) {
      if (auto grown = task_->grow(512); !grown) return grown;
    }
    if (task_->head() != device_address(task_begins_at)) {
      return fail(exit_failed, fmt::format("the addresses from {:#x} on are somebody else's here",
                                           task_begins_at));
    }
    const auto now = check_task(device_, task_->head());
    if (!now) return tl::unexpected(now.error());
    seen_ = *now;
    line("begins", fmt::format("at {:#x}: a vector that grew to {} cells, an allocator's {} blocks "
                               "that point to each other: {}",
                               task_begins_at, seen_.cells, seen_.blocks, human(seen_.bytes)));
    return {};
  }

  outcome<void> work_for(std::chrono::milliseconds time) {
    auto work = task_at_work::start(device_, task_->head(), seen_.cells);
    if (!work) return tl::unexpected(work.error());
    std::this_thread::sleep_for(time);
    const auto writes = work->stop();
    if (!writes) return tl::unexpected(writes.error());
    seen_.writes += *writes;
    return {};
  }

  // Twice, with some work in between; the second image has only what changed.
  outcome<void> save() {
    snapshot::save_options how;
    how.image.chunk_bytes = 256 << 10;
    auto began = clock::now();
    const auto first = snapshot::save(device_, task_tags, in_.at("first.smi"), how);
    if (!first) return fail(first.error());
    line("saved", fmt::format("{} in {}, read back and whole", human(first->stored_bytes),
                              human_seconds(since(began))));
    if (auto worked = work_for(std::chrono::milliseconds(200)); !worked) return worked;
    const auto parent = image::reader::open(in_.at("first.smi"));
    if (!parent) return fail(parent.error());
    how.image.parent = *parent;
    began = clock::now();
    const auto later = snapshot::save(device_, task_tags, in_.at("later.smi"), how);
    if (!later) return fail(later.error());
    auto reader = station::start("reader", in_, where_);
    if (!reader) return tl::unexpected(reader.error());
    const auto there = reader->listen();
    if (!there) return tl::unexpected(there.error());
    if (auto same = check("restored", *there); !same) return same;
    line("", fmt::format("after {} writes again: {} written, {} the same as before; restored in "
                         "another process",
                         seen_.writes - seen_.cells, human(later->stored_bytes),
                         human(later->parent_chunks * (256 << 10))));
    return {};
  }

  outcome<void> hand_over(station &second) {
    auto to = handoff::connection::connect(in_.meeting_place(), std::chrono::seconds(30));
    if (!to) return fail(to.error());
    const driver_counts before = device_.driver().counts();
    clock::time_point stopped;
    handoff::handoff_options how;
    how.quiesce = [&]() -> status {
      stopped = clock::now();
      return {};
    };
    const auto began = clock::now();
    const auto given = handoff::give(device_, *to, task_tags, how);
    if (!given) return fail(given.error());
    const double pause = since(stopped), all = since(began);
    const driver_counts made = device_.driver().counts() - before;
    const auto there = second.listen();
    if (!there) return tl::unexpected(there.error());
    if (auto same = check("handed over", *there); !same) return same;
    line("handed", fmt::format("over to a second process: {} in {} pages, {} bytes copied, in {}; "
                               "paused for {}",
                               human(given->bytes), given->pages,
                               made.bytes_to_host + made.bytes_to_device + made.bytes_on_device,
                               human_seconds(all), human_seconds(pause)));
    return {};
  }

  outcome<void> move(station &second, station &third) {
    auto sent = second.listen();
    if (!sent) return tl::unexpected(sent.error());
    said &s = *sent;
    seen_.writes += static_cast<std::uint64_t>(s["writes"]);
    const auto there = third.listen();
    if (!there) return tl::unexpected(there.error());
    if (auto same = check("moved", *there); !same) return same;
    line("moved",
         fmt::format("to a third over TLS, while {} writes went on: {} sent in {} rounds, {} "
                     "skipped as zero, {} as unchanged; {}, paused for {}",
                     s["writes"], bytes(s["sent"]), s["rounds"], bytes(s["zero"]),
                     bytes(s["clean"]), human_seconds(s["seconds"]), human_seconds(s["pause"])));
    return {};
  }

  // What a station found, against what it should find.
  outcome<void> check(const char *when, said there) const {
    if (there["bytes"] == static_cast<double>(seen_.bytes) &&
        there["cells"] == static_cast<double>(seen_.cells) &&
        there["blocks"] == static_cast<double>(seen_.blocks) &&
        there["writes"] == static_cast<double>(seen_.writes)) {
      return {};
    }
    return fail(exit_failed,
                fmt::format("{}: {} cells and {} blocks with {} writes came, should be {}, {}, {}",
                            when, there["cells"], there["blocks"], there["writes"], seen_.cells,
                            seen_.blocks, seen_.writes));
  }

  const driver_options &where_;
  const device &device_;
  const journey_folder &in_;
  std::optional<travelling_task> task_;
  task_check seen_;
};

outcome<exit_status> travel(const journey_options &o) {
  if (!o.part.empty()) return run_station(o.part, journey_folder(o.folder), o.driver);
  auto drv = choose_driver(o.driver.driver);
  if (!drv) return tl::unexpected(drv.error());
  const auto d = open_device(**drv, o.driver.device);
  if (!d) return tl::unexpected(d.error());
  if (!d->capabilities().vmm || !d->capabilities().posix_fd_export || !keeps_content(**drv)) {
    return fail(exit_no_driver,
                fmt::format("{} has no pages that another process can have", describe(**drv, *d)));
  }
  const auto in = journey_folder::create();
  if (!in) return tl::unexpected(in.error());
  fmt::print("A task on {}\n", describe(**drv, *d));
  journey j(o.driver, *d, *in);
  if (auto done = j.run(); !done) return tl::unexpected(done.error());
  fmt::print(
      "stillmap: ok: one task, three processes; {} checked at each, every address and pointer as "
      "at the first\n",
      human_and_exact(j.seen().bytes));
  return exit_ok;
}

}  // namespace

void add_journey(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "journey",
      "A task at work is saved, handed over to a second process, and moved to a third over TLS\n"
      "while it works; at each station every byte, address and pointer is checked.");
  c->footer(exit_status_help);
  const auto o = std::make_shared<journey_options>();
  add_driver_options(*c, o->driver);
  c->add_option("--part", o->part)->group("");
  c->add_option("--folder", o->folder)->group("");
  c->callback([o, &body] { body = [o] { return travel(*o); }; });
}

}  // namespace stillmap::tool
