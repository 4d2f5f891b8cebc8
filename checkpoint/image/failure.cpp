#include "stillmap/checkpoint/image/failure.h"

namespace stillmap::image {

const char *name_of(part p) noexcept {
  switch (p) {
    case part::file:
      return "file";
    case part::superblock:
      return "superblock";
    case part::extents:
      return "extents";
    case part::chunk_table:
      return "chunk table";
    case part::manifest:
      return "manifest";
    case part::seals:
      return "seals";
    case part::signature:
      return "signature";
    case part::parent:
      return "parent";
    case part::set:
      return "set";
  }
  return "unknown part";
}

std::string failure::message() const {
  std::string text = file.empty() ? std::string() : file + ": ";
  if (where != part::file || offset != 0) {
    text += std::string(name_of(where)) + " at " + std::to_string(offset) + ": ";
  }
  text += why.reason;
  if (!found.empty() || !expected.empty()) {
    text += " (";
    if (!found.empty()) text += "there is " + found;
    if (!found.empty() && !expected.empty()) text += ", ";
    if (!expected.empty()) text += "should be " + expected;
    text += ")";
  }
  return text + ": " + why.code.message() + " [" + why.operation + "]";
}

tl::unexpected<failure> fail(errc c, const char *operation, const char *reason, part where,
                             std::uint64_t offset, std::string found, std::string expected) {
  return tl::unexpected<failure>(failure{error{make_error_code(c), operation, reason, offset, 0},
                                         {},
                                         where,
                                         offset,
                                         std::move(found),
                                         std::move(expected)});
}

tl::unexpected<failure> fail_system(int code, const char *operation, const char *reason,
                                    std::uint64_t offset) {
  return tl::unexpected<failure>(
      failure{error{std::error_code(code, std::system_category()), operation, reason, offset, 0},
              {},
              part::file,
              offset,
              {},
              {}});
}

}  // namespace stillmap::image
