// Compares text with a golden file of the source tree. STILLMAP_UPDATE_GOLDEN=1 rewrites the file.
#pragma once

#include <string>

namespace stillmap::testing {

// `path` begins at the top of the source tree: "tests/vmm/golden/vectors.txt".
void expect_golden(const std::string &path, const std::string &text);

}  // namespace stillmap::testing
