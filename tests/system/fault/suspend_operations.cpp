// Suspend and resume by tag. An undone change raises generations, so these are not compared.
#include "tests/support/host_memory.h"
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

using checkpoint::backing_store;
using checkpoint::suspender;

// Two buffers, and one that shares pages with the first: all without a tag.
void make_task(bench &w) {
  w.make(w.a, 16, 3);
  w.make(w.b, 8, 2);
  w.c.buffer = std::move(*w.b.buffer->fork());
  w.c.first_address = w.c.buffer->address();
  w.c.known = w.b.known;
  checkpoint::suspender_options options;
  options.streams = 1;  // the same calls in the same order every time
  w.sleeper = std::move(*suspender::create(*w.dev, options));
}

status suspend(bench &w, backing_store where) {
  if (!w.sleeper->suspended().empty()) return {};
  checkpoint::suspend_options how;
  how.store = where;
  return outcome(w.sleeper->suspend("", how));
}

void add_pair(std::vector<operation> &all, backing_store where, const std::string &name) {
  all.push_back({.name = "suspend, " + name,
                 .set = make_task,
                 .run = [where](bench &w) { return suspend(w, where); },
                 .may_survive = {},
                 .calls = "suspender::suspend"});
  all.push_back({.name = "resume, " + name,
                 .set =
                     [where](bench &w) {
                       make_task(w);
                       if (const status s = suspend(w, where); !s) {
                         throw std::runtime_error(s.error().message());
                       }
                     },
                 .run = [](bench &w) -> status {
                   const bool resumed = [&] {
                     const allow_host_allocations a_list_of_tags;
                     return w.sleeper->suspended().empty();
                   }();
                   if (resumed) return {};
                   return outcome(w.sleeper->resume(""));
                 },
                 .may_survive = {},
                 .calls = "suspender::resume"});
}

}  // namespace

void add_suspend_operations(std::vector<operation> &all) {
  all.push_back({.name = "suspender create",
                 .set = [](bench &) {},
                 .run = [](bench &w) -> status {
                   auto made = suspender::create(*w.dev);
                   if (made) w.sleeper = std::move(*made);
                   return outcome(made);
                 },
                 .may_survive = {}});
  add_pair(all, backing_store::pinned_host, "pinned");
  add_pair(all, backing_store::file, "file");
  add_pair(all, backing_store::discard, "dropped");
}

}  // namespace stillmap::testing
