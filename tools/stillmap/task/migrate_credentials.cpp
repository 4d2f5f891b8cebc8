// stillmap task migrate credentials: creates a key and a self-signed certificate.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/task/identity.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

tl::unexpected<failure> cannot_create(const std::string &path) {
  const operation_scope scope("migrate credentials");
  return fail(make_system_error(errno, "cannot be created", path).value());
}

// Creates a file that must not exist.
outcome<void> write_new(const std::string &path, const std::string &text, mode_t mode) {
  const owned_fd out(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode));
  if (out.get() < 0) return cannot_create(path);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(out.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return cannot_create(path);
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(out.get()) != 0) return cannot_create(path);
  return {};
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name[0] != '\0' ? name : "stillmap";
}

}  // namespace

outcome<exit_status> run_migrate_credentials(const migrate_credentials_options &o) {
  if (o.name.size() > 64) return fail(exit_usage, "--name: the name exceeds 64 characters");
  const std::string key = o.folder + '/' + key_name, mine = o.folder + '/' + certificate_name;
  for (const std::string &path : {key, mine}) {
    if (::access(path.c_str(), F_OK) == 0) {
      return fail(exit_refused, path + " already exists: the other end may trust it");
    }
  }
  STILLMAP_ASSIGN_OR_RETURN(
      const auto made, migration::make_self_signed(o.name.empty() ? host_name() : o.name, o.days));
  STILLMAP_ASSIGN_OR_RETURN(const auto hash, migration::fingerprint_of(made));
  if (::mkdir(o.folder.c_str(), 0700) != 0 && errno != EEXIST) return cannot_create(o.folder);
  STILLMAP_RETURN_IF_ERROR(write_new(key, made.key, 0600));
  if (auto w = write_new(mine, made.certificate, 0644); !w) {
    ::unlink(key.c_str());  // a key without a certificate is useless
    return tl::unexpected(w.error());
  }
  if (o.json) {
    json_writer json;
    json.begin_object().field("certificate", mine).field("key", key);
    fmt::print("{}", json.field("fingerprint", hash).end().text());
    return exit_ok;
  }
  fmt::print("{} and {} ({}, valid for {} days)\n", mine, key_name,
             printable(o.name.empty() ? host_name() : o.name), o.days);
  fmt::print("The other end trusts it with: --peer-fingerprint {}\n", hash);
  fmt::print("stillmap: ok: on this machine use --credentials {}; keep {} secret\n", o.folder,
             key_name);
  return exit_ok;
}

}  // namespace stillmap::tool
