#include "tools/stillmap/quota/quota_commands.h"

#include "tools/stillmap/cli/commands.h"

namespace stillmap::tool {
namespace {

void add_name(command &c, std::string &name) {
  c.argument(name, "QUOTA", "the name that the participants use: a file in /dev/shm, or a path")
      .required();
}

void add_status(command &group) {
  const auto [c, o] =
      group.add("status", run_quota_status,
                "Prints who holds what of a shared quota. For each process: what it has reserved, "
                "its minimum, maximum and priority, what it waits for, and what it can give back.");
  add_name(c, o.name);
  c.json(o.json);
}

void add_set(command &group) {
  const auto [c, o] = group.add(
      "set", run_quota_set,
      "Changes the limit of a shared quota, or the terms of a process. It prints whether the "
      "change "
      "is in force (applied) or more is held than it allows, until that is given back (deferred).");
  add_name(c, o.name);
  c.size("--limit", o.limit, "what all participants may hold together");
  c.number("--pid", o.process, std::uint64_t{1}, std::uint64_t{UINT32_MAX}, "PID",
           "the process whose terms change");
  c.size("--minimum", o.minimum, "what that process gets whatever others hold");
  c.size("--maximum", o.maximum, "what it can have at most");
  c.text("--priority", o.priority, "N", "it is served before those of lower priority");
  c.text("--if-revision", o.if_revision, "N",
         "only if nothing has been changed since status printed this revision");
  c.json(o.json);
}

void add_watch(command &group) {
  const auto [c, o] = group.add(
      "watch", run_quota_watch,
      "Prints each decision of a shared quota as it is made: who waits, who is asked for what, who "
      "gives what back, and how a wait ends. It begins with the latest ones that the quota keeps.");
  add_name(c, o.name);
  c.number("--for", o.seconds, 0.0, 1e9, "SECONDS",
           "how long to watch after that (default: until it is interrupted)");
  c.flag("--json", o.json, "print a JSON object for each, on a line of its own");
}

}  // namespace

void add_quota_commands(command &root) {
  command &group = root.add("quota", "Memory of a device that processes share.");
  add_status(group);
  add_set(group);
  add_watch(group);
}

}  // namespace stillmap::tool
