#include "stillmap/checkpoint/image/read_superblock.h"

#include <fcntl.h>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {

result<superblock> read_superblock(checkpoint::file_system &files, int directory,
                                   const std::string &name) {
  const operation_scope scope("image::read_superblock");
  STILLMAP_ASSIGN_OR_RETURN(auto f,
                            checkpoint::block_file::open_to_read(files, directory, name, false));
  STILLMAP_ASSIGN_OR_RETURN(const auto block, checkpoint::aligned_memory::create(block_bytes));
  STILLMAP_RETURN_IF_ERROR(f.read(block.bytes(), 0));
  STILLMAP_ASSIGN_OR_RETURN(const superblock s, decode_superblock(block.bytes()));
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t size, f.size());
  if (size != s.file_bytes) {
    return checkpoint::file_error(
        errc::corrupt, "the size of the file differs from the superblock's", part::superblock, 24,
        std::to_string(size), std::to_string(s.file_bytes));
  }
  return s;
}

result<superblock> read_superblock(const std::string &path, checkpoint::file_system &files) {
  return checkpoint::in_file(
      with_host_memory("image::read_superblock",
                       [&] { return read_superblock(files, AT_FDCWD, path); }),
      path);
}

}  // namespace stillmap::image
