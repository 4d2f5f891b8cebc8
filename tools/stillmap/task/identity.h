// Checks and loads the TLS identity of the migration commands, and prints the outcome of a migration.
#pragma once

#include <string>

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "tools/stillmap/task/task_commands.h"

namespace stillmap::tool {

// The files of our credentials, as absolute paths.
std::string certificate_file(const identity_options &o);
std::string key_file(const identity_options &o);
// Errors: exit_usage, with what is missing or malformed.
outcome<void> check_identity(const identity_options &o);
// Errors: a file that cannot be read.
outcome<migration::credentials> load_identity(const identity_options &o);

// The files that `credentials` writes and --credentials reads.
inline constexpr const char *certificate_name = "certificate.pem";
inline constexpr const char *key_name = "key.pem";

// From 32 hexadecimal digits; zero from an empty text. Errors: exit_usage.
outcome<migration::task_id> task_id_of(const std::string &text);

// "name (192.0.2.7:4711)"
std::string text_of(const migration::peer_identity &p);
// What has carried the contents: "tls", or the name of another transport.
std::string data_transport_of(const migration::sent_memory &x);

// A failure of a migration to `address`, or to reach the task, with advice where the cause is known.
tl::unexpected<failure> fail_reaching(const std::string &address, const error &e);

// Prints the outcome of a migration, as the last lines of send and resolve. `task` are the words that
// name it for resolve. Errors: the migration's; in doubt; `resolving` accepts either owner.
outcome<exit_status> print_sent(const migration::sent_memory &sent, const std::string &task,
                                bool json, bool resolving);

}  // namespace stillmap::tool
