// What the commands that ask another process have in common.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/control/client.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct task_options {
  std::string socket;
  double wait = 0;  // seconds
};
// SOCKET and --wait.
void add_task_options(CLI::App &app, task_options &into);
void add_wait_option(CLI::App &app, double &seconds, const std::string &help);
void add_tags(CLI::App &app, std::vector<std::string> &into, const std::string &help);

// Those that were named, or all that the process has. Errors: exit_failed (it has none), asking's.
outcome<std::vector<std::string>> tags_of(const control::client &c,
                                          const std::vector<std::string> &named, bool all);

control::client client_of(const task_options &o);
std::chrono::milliseconds milliseconds_of(double seconds);

// For another process, whose current folder is not ours. Abstract names stay as they are.
std::string absolute(const std::string &path);

// A name from elsewhere, so that it cannot do anything to a terminal.
std::string printable(const std::string &text);
const char *name_of(checkpoint::keep_in where);

// What a process is busy with: "snapshot, for 1.2 s, 2 MiB of 3 MiB"; empty: nothing.
std::string job_text(const control::job_status &job);
// As a member "doing", or null.
void job_json(json_writer &json, const control::job_status &job);

// Blocks as lines of a table, or as an array "blocks".
std::string blocks_table(const checkpoint::memory_layout &l);
void blocks_json(json_writer &json, const checkpoint::memory_layout &l);

inline tl::unexpected<failure> fail(const control::failure &why) {
  return fail(exit_failed, printable(why.text));
}

}  // namespace stillmap::tool
