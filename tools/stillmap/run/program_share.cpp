#include "tools/stillmap/run/program_share.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "stillmap/allocators/device_share.h"
#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/quota/minimum.h"

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

bool is_path(const std::string &name) {
  return name.find('/') != std::string::npos;
}

// One without a limit is created by the program, which knows how much memory the device has.
outcome<void> check_folder(const std::string &name) {
  const fs::path folder = is_path(name) ? fs::path(name).parent_path() : fs::path("/dev/shm");
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  const std::string why = std::generic_category().message(errno);
  return fail(errno == ENOENT ? exit_not_found : exit_refused,
              fmt::format("--share: the quota {} does not exist, and cannot be made in {}: {}",
                          name, folder.string(), why));
}

outcome<void> check(const share_settings &s) {
  const auto there = shared_quota::stats_of(s.name);
  const bool is_new = !there && there.error().code == std::errc::no_such_file_or_directory;
  if (is_new && s.limit == 0) return check_folder(s.name);
  if (there) STILLMAP_RETURN_IF_ERROR(check_minimum("--share " + s.name, s.terms, *there));
  // Of one that exists, the limit is what is there; where nobody takes part, the program sets it.
  const auto joined = shared_quota::open(s.name, {.limit = is_new ? s.limit : 0, .terms = s.terms});
  if (!joined) return fail(joined.error().about("--share " + s.name));
  return {};
}

}  // namespace

outcome<std::vector<std::string>> variables_of(const program_share &given) {
  if (given.quota.empty()) return std::vector<std::string>{};
  auto share = parse_share(given.quota, "--share");
  if (!share) return fail(share.error());
  // The program may change its folder.
  if (is_path(share->name)) share->name = fs::absolute(share->name).string();
  share->terms.minimum = given.minimum;
  if (given.maximum != 0) share->terms.maximum = given.maximum;
  share->terms.priority = given.priority;
  STILLMAP_RETURN_IF_ERROR(check(*share));
  std::string quota = share->name;
  if (share->limit != 0) quota += fmt::format(":{}", share->limit);
  return std::vector<std::string>{"STILLMAP_PRELOAD_SHARE=" + quota,
                                  fmt::format("STILLMAP_PRELOAD_MINIMUM={}", given.minimum),
                                  fmt::format("STILLMAP_PRELOAD_PRIORITY={}", given.priority)};
}

}  // namespace stillmap::tool
