// Shared by the commands that send requests to a process.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/vmm/base/json_writer.h"
#include "tools/stillmap/task/task_commands.h"

namespace stillmap::tool {

control::client client_of(const task_options &o);
// Checks that a request names tags or asks for `all`, which the process expands, and that the process
// has memory of the tags that it names. A list of tags that is cut short says nothing about the others:
// the process refuses those that it does not have.
// Errors: exit_usage (neither tags nor `all`, or both), exit_not_found (no such tag), the client's.
outcome<void> check_tags(const task_options &o, const std::vector<std::string> &named,
                         bool all = false);

std::chrono::milliseconds milliseconds_of(double seconds);

// An absolute path, for a process with another working directory. Abstract names are unchanged.
std::string absolute(const std::string &path);

// "pinned", "file" or "discard".
const char *name_of(checkpoint::backing_store store);

// The request that a process executes: "snapshot, for 1.2 s, 2 MiB of 3 MiB"; empty: none.
std::string job_text(const control::job_status &job);
// The same as the member "request", or null.
void job_json(json_writer &json, const control::job_status &job);
// Mapped and suspended memory of all tags, and "live", "empty", "suspended" or "partly suspended".
const char *state_of(const control::tag_status &t);

// Blocks as lines of a table, or as an array "blocks".
std::string blocks_table(const checkpoint::memory_layout &l);
void blocks_json(json_writer &json, const checkpoint::memory_layout &l);

}  // namespace stillmap::tool
