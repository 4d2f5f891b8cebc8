#include "tools/stillmap/task/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

using migration::owner;

bool is_fingerprint(std::string text) {
  std::erase(text, ':');
  return text.size() == 64 && std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// As the process that sent it said, if one did.
std::string reason_of(const error &e) {
  const std::string &cause = e.detail().cause;
  return printable(cause.empty() ? e.message() : cause);
}

void print_json(const migration::sent_memory &x) {
  json_writer json;
  json.begin_object().field("owner", x.owner == owner::source ? "source" : "destination");
  json.field("task", x.task.text()).field("epoch", x.epoch);
  json.begin_object("to").field("address", x.to.address);
  json.field("name", x.to.name).field("fingerprint", x.to.fingerprint).end();
  json.field("rounds", x.rounds).field("bytes", x.bytes).field("sent_bytes", x.bytes_sent);
  json.field("zero_bytes", x.zero_bytes).field("unchanged_bytes", x.unchanged_bytes);
  json.field("resent_chunks", x.resent_chunks).field("downtime_seconds", x.downtime.count());
  json.field("seconds", x.elapsed.count()).field("data_transport", data_transport_of(x));
  if (x.data_fallback) {
    json.field("data_fallback", reason_of(*x.data_fallback));
  } else {
    json.nothing("data_fallback");
  }
  fmt::print("{}", json.field("unmapped", x.unmapped).end().text());
}

}  // namespace

std::string certificate_file(const identity_options &o) {
  return absolute(o.folder.empty() ? o.certificate : o.folder + '/' + certificate_name);
}
std::string key_file(const identity_options &o) {
  return absolute(o.folder.empty() ? o.key : o.folder + '/' + key_name);
}

outcome<void> check_identity(const identity_options &o) {
  const bool files = !o.certificate.empty() || !o.key.empty();
  if (o.folder.empty() == !files || (files && (o.certificate.empty() || o.key.empty()))) {
    return fail(exit_usage, "our identity is needed: --credentials, or --cert and --key");
  }
  if (o.authority.empty() && o.fingerprints.empty()) {
    return fail(exit_usage, "a trusted peer is needed: --peer-fingerprint, or --authority");
  }
  if (!o.name.empty() && o.authority.empty()) return fail(exit_usage, "--name needs --authority");
  for (const std::string &f : o.fingerprints) {
    if (is_fingerprint(f)) continue;
    return fail(exit_usage,
                fmt::format("--peer-fingerprint: '{}' is not 64 hexadecimal digits", f));
  }
  return {};
}

outcome<migration::credentials> load_identity(const identity_options &o) {
  const std::string certificate = certificate_file(o);
  STILLMAP_ASSIGN_OR_RETURN(
      auto out, about(migration::load_credentials(certificate, key_file(o), absolute(o.authority)),
                      certificate));
  out.name = o.name;
  out.fingerprints = o.fingerprints;
  return out;
}

outcome<migration::task_id> task_id_of(const std::string &text) {
  if (text.empty()) return migration::task_id{};
  const auto id = migration::parse_task_id(text);
  if (!id) {
    return fail(exit_usage, fmt::format("--task: '{}' is not 32 hexadecimal digits", text));
  }
  return *id;
}

std::string data_transport_of(const migration::sent_memory &x) {
  return printable(x.data_transport.empty() ? "tls" : x.data_transport);
}

std::string text_of(const migration::peer_identity &p) {
  return printable(p.name.empty() ? p.address : fmt::format("{} ({})", p.name, p.address));
}

tl::unexpected<failure> fail_reaching(const std::string &address, const error &e) {
  failure f(e);
  const auto says = [&](const char *words) { return f.line.find(words) != std::string::npos; };
  const bool unknown_peer = says("certificate verify failed"), rejected = says("alert");
  // An error of the migration itself, and not of the way to the task or of another request.
  const bool of_migration = says("the task continues here");
  if ((unknown_peer || rejected || of_migration) && !says(address.c_str())) {
    f.line = address + ": " + f.line;
  }
  if (unknown_peer) {
    f.line += "; the peer's certificate is not trusted by --peer-fingerprint or --authority";
  } else if (rejected) {
    f.line += "; the peer does not trust our certificate: does it have our fingerprint?";
  }
  if (unknown_peer || rejected) f.status = exit_refused;
  return tl::unexpected(std::move(f));
}

outcome<exit_status> print_sent(const migration::sent_memory &x, const std::string &task, bool json,
                                bool resolving) {
  const error why = x.failure.value_or(error{});
  if (x.owner == owner::in_doubt) {
    failure f(why);
    f.line = fmt::format(
        "in doubt: {}; the task is stopped and nothing is lost: {} decides; once its receiver "
        "can answer: stillmap task migrate resolve {}",
        f.line, text_of(x.to), task);
    f.status = exit_in_doubt;
    return tl::unexpected(std::move(f));
  }
  if (x.owner == owner::source && !resolving) return fail_reaching(text_of(x.to), why);
  if (json) {
    print_json(x);
  } else if (x.owner == owner::source) {
    fmt::print(
        "stillmap: ok: the task did not arrive at {}: it continues at the source, epoch {}\n",
        text_of(x.to), x.epoch);
  } else {
    fmt::print("task {}, epoch {}: {} in {}\n", x.task.text(), x.epoch, format_bytes(x.bytes),
               counted(x.rounds, "round"));
    fmt::print("  {} sent; not sent: {} of zeros, {} unchanged; {} resent\n",
               format_bytes(x.bytes_sent), format_bytes(x.zero_bytes),
               format_bytes(x.unchanged_bytes), counted(x.resent_chunks, "chunk"));
    if (!x.data_transport.empty()) {
      fmt::print("  contents over {}, not encrypted\n", data_transport_of(x));
    } else if (x.data_fallback) {
      fmt::print("  contents over TLS: {}\n", reason_of(*x.data_fallback));
    }
    fmt::print("stillmap: ok: now owned by {}; downtime {}, {} in total{}\n", text_of(x.to),
               human_seconds(x.downtime.count()), human_seconds(x.elapsed.count()),
               x.unmapped ? "" : "; the source failed to unmap its addresses");
  }
  return exit_ok;
}

}  // namespace stillmap::tool
