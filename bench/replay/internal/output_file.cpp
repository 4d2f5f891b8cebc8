#include "bench/replay/internal/output_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "bench/replay/internal/failure.h"

namespace stillmap::replay {

status write_output(const std::string &path, std::string_view content) {
  const std::filesystem::path file(path);
  std::error_code ignored;  // a missing folder shows when the file is opened
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), ignored);
  std::ofstream out(file, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) return fail_system(errno, path, "cannot write the file");
  return {};
}

}  // namespace stillmap::replay
