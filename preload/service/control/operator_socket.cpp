#include "preload/service/control/operator_socket.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "preload/door.h"
#include "preload/service/control/program_calls.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/settings.h"
#include "stillmap/checkpoint/control/process_server.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::preload {
namespace {

using tags_view = control::server_callbacks::tags_view;

struct operated_device {
  std::shared_ptr<checkpoint::suspender> suspender;
  std::unique_ptr<control::server> server;
};

// Guarded by heaps, which creates one allocator at a time. Never destroyed.
std::vector<operated_device> &devices() {
  static auto *const all = [] {
    auto *const made = new std::vector<operated_device>;
    made->reserve(
        device_memory::most_devices);  // the program may end while another device gets its server
    return made;
  }();
  return *all;
}

const fork_watch born;

void resume_all(checkpoint::suspender &suspender) {
  for (const checkpoint::suspended_tag &tag : suspender.suspended()) {
    if (const auto resumed = suspender.resume(tag.tag); !resumed) {
      std::fprintf(
          stderr, "stillmap: this program ends without the memory that an operator suspended: %s\n",
          resumed.error().message().c_str());
    }
  }
}

// Before the program's own functions at its end, which may call the driver: they must not wait for an operator, and
// they and its threads have their memory.
void end_control() noexcept {
  if (born.in_child()) return;
  door::let_this_thread_pass();
  for (operated_device &d : devices()) {
    d.server.reset();
    (void)with_host_memory([&]() -> status {
      resume_all(*d.suspender);
      return {};
    });
  }
  program_calls::all().end();
}

control::memory_figures figures_of(int ordinal) {
  control::memory_figures out;
  if (const caching_allocator *const heap = heaps::of_device(ordinal)) {
    const arena_stats total = heap->stats().total;
    out.allocated = total.live;
    out.cached = total.committed - total.live;
  }
  const settings &given = given_settings();
  out.limit = given.limit == SIZE_MAX ? 0 : given.limit;
  if (!given.share.name.empty()) out.quota = quota_name(given.share, ordinal);
  return out;
}

control::server_options options_for(int ordinal) {
  control::server_options o;
  o.task.quiesce = [ordinal](tags_view tags, const std::stop_token &stop) {
    // Each time, because the last that is registered runs first.
    static_cast<void>(std::atexit(end_control));
    return program_calls::all().hold(ordinal, tags, given_settings().control_timeout, stop);
  };
  o.task.resume = [ordinal](tags_view tags) { program_calls::all().release(ordinal, tags); };
  o.task.memory = [ordinal] { return figures_of(ordinal); };
  o.keeps_memory = "the program does not know of Stillmap and could not go on without its memory";
  return o;
}

status listen(const caching_allocator &heap) {
  const device &d = heap.device();
  control::server_options options = options_for(d.ordinal());
  STILLMAP_ASSIGN_OR_RETURN(options.audit, control::open_audit_log_of_environment());
  STILLMAP_ASSIGN_OR_RETURN(options.suspender, checkpoint::suspender::create(d));
  STILLMAP_ASSIGN_OR_RETURN(
      auto made, control::create_process_server(d, given_settings().control_folder, options));
  devices().push_back({options.suspender, std::make_unique<control::server>(std::move(made))});
  return {};
}

}  // namespace

void serve_operator(const caching_allocator &heap) noexcept {
  if (!given_settings().control) return;
  const status listens = with_host_memory("stillmap_preload", [&] { return listen(heap); });
  if (listens) return;
  std::fprintf(stderr, "stillmap: this program cannot be controlled: %s\n",
               listens.error().message().c_str());
}

}  // namespace stillmap::preload
