// stillmap task hold: keeps published memory for its readers.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "stillmap/checkpoint/publication/holder.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/task_commands.h"
#include "tools/stillmap/task/wait_for_signal.h"

namespace stillmap::tool {
namespace {

// One descriptor a page. Returns the limit that is in force.
std::uint64_t raise_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

// What no process has mapped, as far as the holder knows: "2 GiB (llama, mistral)"; or nothing.
std::string held_here_only(const publication::holder &h) {
  std::uint64_t bytes = 0;
  std::set<std::string> names;
  for (const publication::held_publication &p : h.publications()) {
    if (!p.readers.empty()) continue;
    bytes += p.bytes;
    names.insert(p.name);
  }
  if (names.empty()) return {};
  return printable(
      fmt::format("{} ({})", format_bytes(bytes), join({names.begin(), names.end()}, ", ")));
}

void print_ready(const hold_published_options &o, std::uint64_t descriptors) {
  if (o.json) {
    json_writer json;
    json.begin_object().field("socket", o.socket).field("pid", ::getpid());
    fmt::print("{}", json.field("max_descriptors", descriptors).end().text());
  } else {
    fmt::print("stillmap: ok: holds what is published at {}, up to about {} pages\n", o.socket,
               descriptors);
  }
  std::fflush(stdout);
}

}  // namespace

outcome<exit_status> run_hold_published(const hold_published_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto waiter, signal_waiter::create());
  const std::uint64_t descriptors = raise_descriptors();
  STILLMAP_ASSIGN_OR_RETURN(const auto held,
                            about(publication::holder::create(o.socket), o.socket));
  print_ready(o, descriptors);
  for (unsigned asked = 1; waiter->wait_for(asked); ++asked) {
    const std::string lost = held_here_only(held);
    if (lost.empty()) return exit_ok;
    if (o.end_at_once || asked > 1) {
      return fail(exit_failed, "lost " + lost + ", unless its publisher still has it");
    }
    fmt::print(stderr,
               "stillmap: asked to end, but {} has no readers and would be lost, unless its "
               "publisher still has it. Still holding it.\n"
               "  To see it:   stillmap task published {}\n"
               "  To lose it:  ask again (Ctrl-C, or kill {})\n",
               lost, o.socket, ::getpid());
  }
  return exit_ok;
}

}  // namespace stillmap::tool
