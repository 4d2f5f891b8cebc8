// What the commands about migrating have in common.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/migration/credentials.h"
#include "tools/stillmap/cli/command.h"

namespace stillmap::tool {

// The commands' own parts of `stillmap migrate`.
void add_migrate_send(CLI::App &app, command_body &body);
void add_migrate_receive(CLI::App &app, command_body &body);
void add_migrate_status(CLI::App &app, command_body &body);
void add_migrate_settle(CLI::App &app, command_body &body);
void add_migrate_abort(CLI::App &app, command_body &body);
void add_migrate_credentials(CLI::App &app, command_body &body);

// Who we are, and whom we believe.
struct identity_options {
  std::string folder, certificate, key, authority, name;
  std::vector<std::string> fingerprints;

  bool given() const {
    return !folder.empty() || !certificate.empty() || !key.empty() || !authority.empty() ||
           !fingerprints.empty();
  }
  // Absolute.
  std::string certificate_file() const;
  std::string key_file() const;
};
void add_identity(CLI::App &app, identity_options &into);
// Throws CLI::ValidationError where it is not whole.
void check_identity(const identity_options &o);
// Errors: exit_usage (a file that cannot be read: which one).
outcome<migration::credentials> load_identity(const identity_options &o);

// The names that `credentials` makes and --credentials reads.
inline constexpr const char *certificate_name = "certificate.pem";
inline constexpr const char *key_name = "key.pem";

// --task, of 32 hexadecimal digits.
void add_task_id(CLI::App &app, migration::task_id &into, const std::string &help);

// "name (192.0.2.7:4711)"
std::string text_of(const migration::peer &p);

// A failure on the way to `where`, with what to do where that is known.
tl::unexpected<failure> fail_reaching(const std::string &where, const control::failure &why);

// What became of it, as the last lines of a command: exit_ok where the memory is where it was sent
// or, for settle, where it is clear whose it is.
outcome<exit_status> tell_migrated(const control::migrated &m, const std::string &socket, bool json,
                                   bool settling);

}  // namespace stillmap::tool
