// Preparing a process for its checkpoint, and undoing that. An undone change raises generations, so
// these are not compared.
#include "tests/support/host_memory.h"
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

// Two buffers with pages in common, all without a tag; and a descriptor of exported memory.
void make_process(bench &w) {
  w.make(w.a, 16, 3);
  w.c.buffer = std::move(*w.a.buffer->fork());
  w.c.first_address = w.c.buffer->address();
  w.c.known = w.a.known;
  w.fit = std::move(*process::process_checkpoint::create({*w.dev}));
  if (!w.dev->capabilities().posix_fd_export) return;
  physical_properties p;
  p.location = on_device(w.dev->ordinal());
  p.exportable = handle_type::posix_fd;
  w.memory.emplace(std::move(*physical_memory::create(*w.dev, w.page(), p)));
  w.fd = std::move(*w.memory->export_fd());
}

status prepare(bench &w) {
  if (w.fit->prepared()) return {};
  return outcome(w.fit->prepare({.evict = {""}}));
}

}  // namespace

void add_process_operations(std::vector<operation> &all) {
  all.push_back({.name = "process_checkpoint create",
                 .set = [](bench &) {},
                 .run = [](bench &w) -> status {
                   std::vector<device> devices;
                   {
                     const allow_host_allocations an_argument;
                     devices.push_back(*w.dev);
                   }
                   auto made = process::process_checkpoint::create(std::move(devices));
                   if (made) w.fit = std::move(*made);
                   return outcome(made);
                 },
                 .may_survive = {}});
  all.push_back({.name = "process prepare",
                 .set = make_process,
                 .run = prepare,
                 .may_survive = {},
                 .calls = "process_checkpoint::prepare"});
  all.push_back({.name = "process_checkpoint resume",
                 .set =
                     [](bench &w) {
                       make_process(w);
                       if (const status s = prepare(w); !s) {
                         throw std::runtime_error(s.error().message());
                       }
                     },
                 .run = [](bench &w) { return w.fit->resume(); },
                 .may_survive = {}});
}

}  // namespace stillmap::testing
