// What errors about a place in a file say.
#include "stillmap/checkpoint/base/file_error.h"

#include <gtest/gtest.h>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::checkpoint {
namespace {

TEST(file_errors, name_the_file_the_position_and_the_values) {
  const operation_scope scope("image::open");
  const auto e = in_file(file_error(errc::corrupt, "the size of the file differs", "superblock", 24,
                                    "8192", "4096"),
                         "x.smi")
                     .value();
  EXPECT_EQ(e.message(),
            "x.smi: superblock at 24: image::open: the size of the file differs (found 8192, "
            "expected 4096): corrupt");
  EXPECT_EQ(in_file(tl::unexpected(e), "y.smi").value().detail().subject, "x.smi");
  EXPECT_EQ(system_error_at(5, "cannot read", 4096).value().detail().where, "offset 4096");
}

}  // namespace
}  // namespace stillmap::checkpoint
