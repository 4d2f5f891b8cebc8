#include "tools/stillmap/task/migrate_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

using migration::whose;

bool is_fingerprint(const std::string &text) {
  std::size_t digits = 0;
  for (const char c : text) {
    if (c == ':') continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return false;
    ++digits;
  }
  return digits == 64;
}

const char *name_of(whose w) {
  return w == whose::source ? "source" : w == whose::destination ? "destination" : "undecided";
}

void print_json(const control::migrated &m) {
  const migration::sent_memory &x = m.sent;
  json_writer json;
  json.begin_object().field("owner", name_of(x.whose)).field("task", x.task.text());
  json.field("epoch", x.epoch).begin_object("to").field("where", x.to.where);
  json.field("name", x.to.name).field("fingerprint", x.to.fingerprint).end();
  json.field("rounds", std::uint64_t{x.rounds}).field("bytes", x.bytes);
  json.field("sent_bytes", x.bytes_sent).field("zero_bytes", x.zero_bytes);
  json.field("unchanged_bytes", x.clean_bytes).field("resent_chunks", x.resent);
  json.field("pause_seconds", x.pause).field("seconds", x.seconds);
  json.field("unmapped", x.unmapped);
  if (m.why.code) {
    json.field("why", m.why.text);
  } else {
    json.nothing("why");
  }
  fmt::print("{}\n", json.end().text());
}

}  // namespace

std::string identity_options::certificate_file() const {
  return absolute(folder.empty() ? certificate : folder + '/' + certificate_name);
}
std::string identity_options::key_file() const {
  return absolute(folder.empty() ? key : folder + '/' + key_name);
}

void add_identity(CLI::App &app, identity_options &into) {
  app.add_option("--credentials", into.folder,
                 "a folder with certificate.pem and key.pem, as\nstillmap migrate credentials "
                 "makes them; or one by one:")
      ->type_name("DIR");
  app.add_option("--cert", into.certificate, "our certificate, PEM")->type_name("FILE");
  app.add_option("--key", into.key, "its key, PEM")->type_name("FILE");
  app.add_option("--peer-fingerprint", into.fingerprints,
                 "believe who has this certificate (its SHA-256, in\nhexadecimal); again for more")
      ->type_name("HEX")
      ->type_size(1)
      ->allow_extra_args(false);
  app.add_option("--authority", into.authority,
                 "believe who has a certificate of one of these\nauthorities, PEM")
      ->type_name("FILE");
  app.add_option("--name", into.name, "and this name in it")->type_name("NAME");
}

void check_identity(const identity_options &o) {
  const bool files = !o.certificate.empty() || !o.key.empty();
  if (o.folder.empty() == !files || (files && (o.certificate.empty() || o.key.empty()))) {
    throw CLI::ValidationError("--credentials",
                               "say who we are: --credentials, or --cert and --key");
  }
  if (o.authority.empty() && o.fingerprints.empty()) {
    throw CLI::ValidationError("--peer-fingerprint",
                               "say who is believed: --peer-fingerprint, or --authority");
  }
  if (!o.name.empty() && o.authority.empty()) {
    throw CLI::ValidationError("--name", "needs --authority");
  }
  for (const std::string &f : o.fingerprints) {
    if (!is_fingerprint(f)) {
      throw CLI::ValidationError("--peer-fingerprint", "want 64 hexadecimal digits, not " + f);
    }
  }
}

outcome<migration::credentials> load_identity(const identity_options &o) {
  migration::credentials out;
  for (const auto &[path, into] : {std::pair{o.certificate_file(), &out.certificate},
                                   {o.key_file(), &out.key},
                                   {absolute(o.authority), &out.authorities}}) {
    auto one = migration::load_credentials(path, {});
    if (!one) return fail(exit_usage, fmt::format("{}: {}", path, one.error().message()));
    *into = std::move(one->certificate);
  }
  out.name = o.name;
  out.fingerprints = o.fingerprints;
  return out;
}

void add_task_id(CLI::App &app, migration::task_id &into, const std::string &help) {
  app.add_option_function<std::string>(
         "--task",
         [&into](const std::string &text) {
           const auto id = migration::task_id_of(text);
           if (!id) {
             throw CLI::ValidationError("--task", "want 32 hexadecimal digits, not " + text);
           }
           into = *id;
         },
         help)
      ->type_name("HEX");
}

std::string text_of(const migration::peer &p) {
  return printable(p.name.empty() ? p.where : fmt::format("{} ({})", p.name, p.where));
}

tl::unexpected<failure> fail_reaching(const std::string &where, const control::failure &why) {
  const auto says = [&](const char *words) { return why.reason.find(words) != std::string::npos; };
  const bool of_link = why.operation == "migration::channel" || why.operation == "migration::tls";
  std::string line = (of_link ? where + ": " : std::string()) + why.text;
  if (of_link && says("certificate verify failed")) {
    line += "\n  Whoever answers there is not whom --peer-fingerprint or --authority names.";
  } else if (of_link && says("alert")) {
    line += "\n  The other side does not believe our certificate: has it our fingerprint?";
  }
  return fail(exit_failed, line);
}

outcome<exit_status> tell_migrated(const control::migrated &m, const std::string &socket, bool json,
                                   bool settling) {
  const migration::sent_memory &x = m.sent;
  if (json) print_json(m);
  switch (x.whose) {
    case whose::destination:
      if (json) break;
      fmt::print("task {}, epoch {}: {} in {} round{}\n", x.task.text(), x.epoch, human(x.bytes),
                 x.rounds, x.rounds == 1 ? "" : "s");
      fmt::print(
          "  {} sent, {} of zeros not sent, {} unchanged and not sent again, {} chunk{} "
          "resent\n",
          human(x.bytes_sent), human(x.zero_bytes), human(x.clean_bytes), x.resent,
          x.resent == 1 ? "" : "s");
      fmt::print("stillmap: ok: now memory of {}; it stood still for {}, in {} all in all{}\n",
                 text_of(x.to), human_seconds(x.pause), human_seconds(x.seconds),
                 x.unmapped ? "" : "; the source could not be made to let go of its addresses");
      break;
    case whose::source:
      if (!settling) return fail(m.why);
      if (json) break;
      fmt::print("stillmap: ok: it never came to {}: the task goes on where it was, as epoch {}\n",
                 text_of(x.to), x.epoch);
      break;
    case whose::undecided:
      return fail(exit_failed,
                  fmt::format("undecided: {}\n"
                              "  The task stands still, and nothing is lost: {} decides, and "
                              "cannot be asked.\n"
                              "  When it can be reached again: stillmap migrate settle {}",
                              printable(m.why.text), text_of(x.to), socket));
  }
  return exit_ok;
}

}  // namespace stillmap::tool
