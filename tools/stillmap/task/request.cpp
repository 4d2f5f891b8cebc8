#include "tools/stillmap/task/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {

outcome<void> check_tags(const task_options &o, const std::vector<std::string> &named, bool all) {
  if (all == !named.empty()) return fail(exit_usage, "either --tag or --all is needed");
  STILLMAP_ASSIGN_OR_RETURN(const auto s, about(client_of(o).status(), o.socket));
  if (all || s.omitted_tags != 0) return {};
  std::vector<std::string> known;
  for (const control::tag_status &t : s.tags) {
    if (!t.tag.empty()) known.push_back(t.tag);
  }
  for (const std::string &tag : named) {
    if (std::find(known.begin(), known.end(), tag) != known.end()) continue;
    const std::string near = nearest(tag, known);
    return fail(exit_not_found, fmt::format("{}: no memory has the tag '{}'; {}", o.socket, tag,
                                            !near.empty() ? fmt::format("did you mean '{}'?", near)
                                            : known.empty() ? std::string("there are no tags")
                                                            : "there are " + join(known, ", ")));
  }
  return {};
}

control::client client_of(const task_options &o) {
  control::client_options options;
  options.connect_timeout = milliseconds_of(o.timeout);
  return control::client(o.socket, options);
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::string absolute(const std::string &path) {
  if (path.empty() || path.starts_with('@')) return path;
  return std::filesystem::absolute(path).string();
}

const char *name_of(checkpoint::backing_store store) {
  return store == checkpoint::backing_store::pinned_host ? "pinned"
         : store == checkpoint::backing_store::file      ? "file"
                                                         : "discard";
}

const char *state_of(const control::tag_status &t) {
  return t.suspended_bytes == 0 ? (t.mapped_bytes == 0 ? "empty" : "live")
         : t.mapped_bytes == 0  ? "suspended"
                                : "partly suspended";
}

std::string job_text(const control::job_status &job) {
  if (job.request == control::request_kind::none) return "";
  std::string out = fmt::format("{}, for {}", control::name_of(job.request),
                                human_seconds(static_cast<double>(job.elapsed.count()) / 1000));
  if (job.in_doubt) return out + ", in doubt: the owner of the memory is unknown";
  if (job.round != 0) out += fmt::format(", round {}", job.round);
  if (job.total_bytes != 0) {
    out += fmt::format(", {} of {}", format_bytes(job.bytes), format_bytes(job.total_bytes));
  }
  if (job.step) {
    out += fmt::format(", {} sent so far (step: {})", format_bytes(job.bytes_sent),
                       migration::name_of(*job.step));
  }
  return out;
}

void job_json(json_writer &json, const control::job_status &job) {
  if (job.request == control::request_kind::none) {
    json.nothing("request");
    return;
  }
  json.begin_object("request").field("kind", control::name_of(job.request));
  json.field("milliseconds", job.elapsed.count()).field("bytes", job.bytes);
  json.field("total_bytes", job.total_bytes);
  if (job.step) {
    json.field("step", migration::name_of(*job.step)).field("round", job.round);
    json.field("sent_bytes", job.bytes_sent).field("in_doubt", job.in_doubt);
  }
  json.end();
}

std::string blocks_table(const checkpoint::memory_layout &l) {
  std::string out;
  for (const auto &b : l.blocks) {
    out += fmt::format("  {}  {:>10} of {:>10}  {}\n", hexadecimal(b.range.begin.value()),
                       format_bytes(l.mapped_bytes(b.range)), format_bytes(b.range.bytes),
                       b.tag.empty() ? "-" : printable(b.tag));
  }
  for (const auto &p : l.published) {
    out += fmt::format("  {}   published, {:>10}  {}: attach {} from a holder\n",
                       hexadecimal(p.range.begin.value()), format_bytes(p.range.bytes),
                       p.tag.empty() ? "-" : printable(p.tag), printable(p.name));
  }
  return out;
}

void blocks_json(json_writer &json, const checkpoint::memory_layout &l) {
  json.begin_array("blocks");
  for (const auto &b : l.blocks) {
    json.begin_object().field("begin", b.range.begin.value()).field("bytes", b.range.bytes);
    json.field("mapped_bytes", l.mapped_bytes(b.range)).field("tag", b.tag).end();
  }
  json.end().begin_array("published");
  for (const auto &p : l.published) {
    json.begin_object().field("begin", p.range.begin.value()).field("bytes", p.range.bytes);
    json.field("tag", p.tag).field("name", p.name).field("id", p.id.text());
    json.field("block", p.block).end();
  }
  json.end();
}

}  // namespace stillmap::tool
