// The commands of `stillmap quota`: their options, and what runs them.
#pragma once

#include <cstdint>
#include <string>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct quota_status_options {
  std::string name;
  bool json = false;
};
outcome<exit_status> run_quota_status(const quota_status_options &o);

struct quota_set_options {
  std::string name, priority;
  std::uint64_t limit = 0, minimum = UINT64_MAX, maximum = UINT64_MAX;
  std::uint64_t process = 0;
  std::string if_revision;
  bool json = false;
};
outcome<exit_status> run_quota_set(const quota_set_options &o);

struct quota_watch_options {
  std::string name;
  double seconds = 0;
  bool json = false;
};
outcome<exit_status> run_quota_watch(const quota_watch_options &o);

}  // namespace stillmap::tool
