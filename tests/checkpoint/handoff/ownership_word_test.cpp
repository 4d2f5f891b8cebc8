// The ownership word: both owners see one word, and each unmaps its own mapping.
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace stillmap::handoff::testing {
namespace {

std::size_t mapped_words() {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);) {
    n += line.find("memfd:stillmap-handoff") != std::string::npos;
  }
  return n;
}

TEST(ownership_word, is_one_word_of_both_owners_until_they_unmap_it) {
  const std::size_t before = mapped_words();
  {
    auto sent = ownership_word::create();
    ASSERT_TRUE(sent) << sent.error().message();
    auto received = ownership_word::open(owned_fd(::fcntl(sent->fd(), F_DUPFD_CLOEXEC, 0)));
    ASSERT_TRUE(received) << received.error().message();
    EXPECT_EQ(mapped_words(), before + 2);
    EXPECT_TRUE(sent->offer());
    EXPECT_EQ(received->load(), ownership::offered);
    EXPECT_TRUE(received->commit());
    EXPECT_FALSE(sent->revoke());
  }
  EXPECT_EQ(mapped_words(), before);
}

}  // namespace
}  // namespace stillmap::handoff::testing
