// stillmap migrate credentials: a certificate to be known by.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "stillmap/vmm/physical_memory.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/task/migrate_options.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

struct credentials_command {
  std::string folder, name;
  int days = 365;
  bool json = false;
};

tl::unexpected<failure> no(const std::string &path) {
  return fail(exit_failed, fmt::format("{}: {}", path, std::strerror(errno)));
}

// New, and nobody else's to read.
outcome<void> write_new(const std::string &path, const std::string &text, mode_t mode) {
  const owned_fd out(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode));
  if (out.get() < 0) return no(path);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(out.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return no(path);
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(out.get()) != 0) return no(path);
  return {};
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name[0] != '\0' ? name : "stillmap";
}

outcome<exit_status> run_credentials(const credentials_command &o) {
  const std::string key = o.folder + '/' + key_name, mine = o.folder + '/' + certificate_name;
  for (const std::string &path : {key, mine}) {
    if (::access(path.c_str(), F_OK) == 0) {
      return fail(exit_failed, path + " is there already: the other side may know it");
    }
  }
  const auto made = migration::make_self_signed(o.name.empty() ? host_name() : o.name, o.days);
  if (!made) return fail(made.error());
  const auto hash = migration::fingerprint_of(*made);
  if (!hash) return fail(hash.error());
  if (::mkdir(o.folder.c_str(), 0700) != 0 && errno != EEXIST) return no(o.folder);
  if (auto w = write_new(key, made->key, 0600); !w) return tl::unexpected(w.error());
  if (auto w = write_new(mine, made->certificate, 0644); !w) {
    ::unlink(key.c_str());  // half a pair is in the way of the next
    return tl::unexpected(w.error());
  }
  if (o.json) {
    json_writer json;
    json.begin_object().field("certificate", mine).field("key", key);
    fmt::print("{}\n", json.field("fingerprint", *hash).end().text());
    return exit_ok;
  }
  fmt::print("{} and {} ({}, good for {} days)\n", mine, key_name,
             printable(o.name.empty() ? host_name() : o.name), o.days);
  fmt::print("The other side believes us by: --peer-fingerprint {}\n", *hash);
  fmt::print("stillmap: ok: on this machine use --credentials {}; show {} to nobody\n", o.folder,
             key_name);
  return exit_ok;
}

}  // namespace

void add_migrate_credentials(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "credentials",
      "Makes a key and a certificate that it signs itself, and prints the\nfingerprint by which "
      "the other side believes whoever has them. Where\nthere is an authority, its certificates "
      "do as well.");
  const auto o = std::make_shared<credentials_command>();
  c->add_option("folder", o->folder,
                "where certificate.pem and key.pem go; made, if it is not there")
      ->required()
      ->type_name("DIR");
  c->add_option("--name", o->name, "whose it is (default: this machine's name)")
      ->check(CLI::Validator(
          [](const std::string &text) {
            return text.empty() || text.size() > 64 ? std::string("want 1 to 64 characters")
                                                    : std::string();
          },
          ""))
      ->type_name("NAME");
  c->add_option("--days", o->days, "good for so long (default: 365)")
      ->check(CLI::Range(1, 36500))
      ->type_name("N");
  c->add_flag("--json", o->json, "the result for programs");
  c->callback([o, &body] { body = [o] { return run_credentials(*o); }; });
}

}  // namespace stillmap::tool
