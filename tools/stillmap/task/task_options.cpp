#include "tools/stillmap/task/task_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "tools/stillmap/common/size.h"

namespace stillmap::tool {

void add_wait_option(CLI::App &app, double &seconds, const std::string &help) {
  app.add_option("--wait", seconds, help)->check(CLI::Range(0.0, 86400.0))->type_name("SECONDS");
}

void add_task_options(CLI::App &app, task_options &into) {
  app.add_option("socket", into.socket,
                 "where the process listens: a path, or an abstract name behind\n'@'")
      ->required()
      ->type_name("SOCKET");
  add_wait_option(app, into.wait, "how long to try, where nobody listens yet (default: 0)");
}

void add_tags(CLI::App &app, std::vector<std::string> &into, const std::string &help) {
  // One a time, so that what follows is not taken for another.
  app.add_option("--tag", into, help)->type_name("TAG")->type_size(1)->allow_extra_args(false);
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

outcome<std::vector<std::string>> tags_of(const control::client &c,
                                          const std::vector<std::string> &named, bool all) {
  if (!all) return named;
  const auto s = c.status();
  if (!s) return fail(s.error());
  std::vector<std::string> out;
  for (const control::tag_status &t : s->tags) {
    if (!t.tag.empty()) out.push_back(t.tag);
  }
  if (out.empty()) return fail(exit_failed, "the process has no memory with a tag");
  return out;
}

control::client client_of(const task_options &o) {
  control::client_options how;
  how.reach = milliseconds_of(o.wait);
  return control::client(o.socket, how);
}

std::string absolute(const std::string &path) {
  if (path.empty() || path.starts_with('@')) return path;
  return std::filesystem::absolute(path).string();
}

std::string printable(const std::string &text) {
  std::string out = text;
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return out;
}

const char *name_of(checkpoint::keep_in where) {
  return where == checkpoint::keep_in::pinned_memory ? "pinned"
         : where == checkpoint::keep_in::file        ? "file"
                                                     : "dropped";
}

std::string job_text(const control::job_status &job) {
  if (job.what == control::request_kind::none) return "";
  std::string out = fmt::format("{}, for {}", control::name_of(job.what),
                                human_seconds(static_cast<double>(job.since.count()) / 1000));
  if (job.undecided) return out + ", undecided whose the memory is";
  if (job.round != 0) out += fmt::format(", round {}", job.round);
  if (job.of_bytes != 0) {
    out += fmt::format(", {} of {}", human(job.bytes), human(job.of_bytes));
  }
  if (job.step) {
    out +=
        fmt::format(", {} sent so far (step: {})", human(job.sent), migration::name_of(*job.step));
  }
  return out;
}

void job_json(json_writer &json, const control::job_status &job) {
  if (job.what == control::request_kind::none) {
    json.nothing("doing");
    return;
  }
  json.begin_object("doing").field("what", control::name_of(job.what));
  json.field("milliseconds", static_cast<std::uint64_t>(job.since.count()));
  json.field("bytes", job.bytes).field("of_bytes", job.of_bytes);
  if (job.step) {
    json.field("step", migration::name_of(*job.step)).field("round", job.round);
    json.field("sent_bytes", job.sent).field("undecided", job.undecided);
  }
  json.end();
}

std::string blocks_table(const checkpoint::memory_layout &l) {
  std::string out;
  for (const auto &b : l.blocks) {
    out += fmt::format("  {}  {:>10} of {:>10}  {}\n", hexadecimal(b.range.begin.value()),
                       human(l.mapped_bytes(b.range)), human(b.range.bytes),
                       b.tag.empty() ? "-" : printable(b.tag));
  }
  return out;
}

void blocks_json(json_writer &json, const checkpoint::memory_layout &l) {
  json.begin_array("blocks");
  for (const auto &b : l.blocks) {
    json.begin_object().field("begin", b.range.begin.value());
    json.field("bytes", std::uint64_t{b.range.bytes});
    json.field("mapped_bytes", std::uint64_t{l.mapped_bytes(b.range)}).field("tag", b.tag).end();
  }
  json.end();
}

}  // namespace stillmap::tool
