#include "stillmap/checkpoint/image/internal/read_superblock.h"

#include "stillmap/checkpoint/image/internal/image_error.h"
#include "stillmap/checkpoint/image/internal/image_file.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {

result<superblock> read_superblock(file_calls &calls, int directory, const std::string &name) {
  STILLMAP_ASSIGN_OR_RETURN(auto f, image_file::open_to_read(calls, directory, name, false));
  STILLMAP_ASSIGN_OR_RETURN(const auto block, aligned_memory::create(block_bytes));
  STILLMAP_RETURN_IF_ERROR(f.read(block.bytes(), 0));
  STILLMAP_ASSIGN_OR_RETURN(const superblock s, decode_superblock(block.bytes()));
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t size, f.size());
  if (size != s.file_bytes) {
    return image_error(errc::corrupt, "image::open",
                       "the size of the file differs from the superblock's", part::superblock, 24,
                       std::to_string(size), std::to_string(s.file_bytes));
  }
  return s;
}

}  // namespace stillmap::image
