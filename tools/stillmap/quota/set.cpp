// stillmap quota set: changes the limit of a shared quota, or the terms of a process.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/quota/minimum.h"
#include "tools/stillmap/quota/quota_commands.h"

namespace stillmap::tool {
namespace {

template <class Number>
outcome<std::optional<Number>> number_of(const std::string &text, const char *option) {
  if (text.empty()) return std::optional<Number>();
  Number n{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) {
    return fail(exit_usage, fmt::format("{}: '{}' is not a whole number", option, text));
  }
  return std::optional<Number>(n);
}

// The terms of the process with what was given in their place.
outcome<quota_terms> terms_of(const quota_set_options &o, std::optional<std::int32_t> priority) {
  STILLMAP_ASSIGN_OR_RETURN(const auto now, about(shared_quota::stats_of(o.name), o.name));
  const auto found =
      std::find_if(now.participants.begin(), now.participants.end(),
                   [&](const quota_participant &p) { return p.process == o.process; });
  if (found == now.participants.end()) {
    return fail(exit_not_found,
                fmt::format("{}: no participant has the process id {}", o.name, o.process));
  }
  quota_terms out = found->terms;
  if (o.minimum != UINT64_MAX) out.minimum = o.minimum;
  if (o.maximum != UINT64_MAX) out.maximum = o.maximum;
  if (priority) out.priority = *priority;
  if (o.minimum != UINT64_MAX) {
    STILLMAP_RETURN_IF_ERROR(check_minimum(o.name, out, now, found->process));
  }
  return out;
}

}  // namespace

outcome<exit_status> run_quota_set(const quota_set_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto revision,
                            number_of<std::uint64_t>(o.if_revision, "--if-revision"));
  STILLMAP_ASSIGN_OR_RETURN(const auto priority, number_of<std::int32_t>(o.priority, "--priority"));
  const bool terms = o.minimum != UINT64_MAX || o.maximum != UINT64_MAX || priority;
  if (terms != (o.process != 0)) {
    return fail(exit_usage, "--pid goes with --minimum, --maximum or --priority");
  }
  if (terms == (o.limit != 0)) {
    return fail(exit_usage, "give either --limit, or --pid and its terms");
  }
  quota_change done{};
  if (terms) {
    STILLMAP_ASSIGN_OR_RETURN(const quota_terms wanted, terms_of(o, priority));
    STILLMAP_ASSIGN_OR_RETURN(
        done, about(shared_quota::set_terms(o.name, static_cast<std::uint32_t>(o.process), wanted,
                                            revision),
                    o.name));
  } else {
    STILLMAP_ASSIGN_OR_RETURN(done,
                              about(shared_quota::set_limit(o.name, o.limit, revision), o.name));
  }
  const char *const word = done == quota_change::applied ? "applied" : "deferred";
  if (o.json) {
    json_writer json;
    json.begin_object().field("change", word);
    fmt::print("{}", json.end().text());
  } else {
    fmt::print("{}{}\n", word,
               done == quota_change::applied ? "" : ": more is held now, until it is given back");
  }
  return exit_ok;
}

}  // namespace stillmap::tool
