// The names of the parts of an image, as errors have them.
#pragma once

namespace stillmap::image {

// The parts of an image, as error_detail::where begins: "superblock at 24".
namespace part {
inline constexpr const char *file = "";  // the file as a whole, or a part that is not known yet
inline constexpr const char *superblock = "superblock";
inline constexpr const char *extents = "extents";
inline constexpr const char *chunk_table = "chunk table";
inline constexpr const char *manifest = "manifest";
inline constexpr const char *seals = "seals";
inline constexpr const char *signature = "signature";
inline constexpr const char *parent = "parent";
inline constexpr const char *set = "set";
}  // namespace part

}  // namespace stillmap::image
