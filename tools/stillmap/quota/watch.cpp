// stillmap quota watch: the decisions of a shared quota as they are made.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/quota/quota_commands.h"

namespace stillmap::tool {
namespace {

// "process 42 gave 2 GiB of cached memory back for process 7"
std::string sentence_of(const quota_event &e) {
  const std::string process = fmt::format("process {}", e.process);
  const std::string bytes = format_bytes(e.bytes);
  const double waited = std::chrono::duration<double>(e.waited).count();
  switch (e.action) {
    case quota_action::joined:
      return process + " joined";
    case quota_action::left:
      return fmt::format("{} left; it held {}", process, bytes);
    case quota_action::waits:
      return fmt::format("{} waits for {}", process, bytes);
    case quota_action::asked:
      return fmt::format("{} is asked for {} of {} memory by process {}", process, bytes,
                         name_of(e.kind), e.other);
    case quota_action::answered:
      return fmt::format("{} gave {} of {} memory back for process {}", process, bytes,
                         name_of(e.kind), e.other);
    case quota_action::granted:
      return fmt::format("{} got {} after {}", process, bytes, human_seconds(waited));
    case quota_action::busy:
      return fmt::format("{} did not get {}, after {}", process, bytes, human_seconds(waited));
    case quota_action::limit_set:
      return fmt::format("{} set the limit to {}", process, bytes);
    case quota_action::terms_set:
      return fmt::format("the terms of {} were changed", process);
  }
  return process;
}

void print(const quota_event &e, bool as_json) {
  if (!as_json) {
    fmt::print("{}  {}\n", utc_text(e.time_ns), sentence_of(e));
    return;
  }
  json_writer json;
  json.begin_record().field("number", e.number).field("time_ns", e.time_ns);
  json.field("action", name_of(e.action)).field("pid", e.process);
  if (e.other != 0) json.field("other_pid", e.other);
  if (e.action == quota_action::asked || e.action == quota_action::answered) {
    json.field("kind", name_of(e.kind));
  }
  json.field("bytes", e.bytes).field("waited_us", static_cast<std::uint64_t>(e.waited.count()));
  fmt::print("{}", json.end().text());
}

}  // namespace

outcome<exit_status> run_quota_watch(const quota_watch_options &o) {
  using clock = std::chrono::steady_clock;
  const auto began = clock::now();
  std::uint64_t next = 0;
  for (;;) {
    STILLMAP_ASSIGN_OR_RETURN(const auto events, about(shared_quota::events_of(o.name), o.name));
    for (const quota_event &e : events) {
      if (e.number < next) continue;
      print(e, o.json);
      next = e.number + 1;
    }
    std::fflush(stdout);
    if (o.seconds > 0 && clock::now() - began >= std::chrono::duration<double>(o.seconds)) {
      return exit_ok;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace stillmap::tool
