// Files of keys that others may read or write are refused.
#include "stillmap/checkpoint/migration/credentials.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace stillmap::migration {
namespace {

class credential_files : public ::testing::Test {
 protected:
  ~credential_files() override { std::remove(path_.c_str()); }
  void write(mode_t mode) const {
    std::ofstream(path_) << "PEM";
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  const std::string path_ = ::testing::TempDir() + "stillmap-key-" + std::to_string(getpid());
};

TEST_F(credential_files, a_private_key_that_others_may_use_is_refused) {
  for (const auto &[mode, text] : {std::pair{0644, "mode 0644"},
                                   {0640, "mode 0640"},
                                   {0604, "mode 0604"},
                                   {0620, "mode 0620"},
                                   {0602, "mode 0602"}}) {
    write(static_cast<mode_t>(mode));
    const auto loaded = load_credentials("", path_);
    ASSERT_FALSE(loaded) << text;
    EXPECT_EQ(loaded.error().code, std::errc::permission_denied);
    EXPECT_EQ(loaded.error().detail().subject, path_);
    EXPECT_EQ(loaded.error().detail().found, text);
    EXPECT_EQ(loaded.error().detail().expected, "mode 0600");
    EXPECT_NE(loaded.error().message().find("chmod 600"), std::string::npos)
        << loaded.error().message();
  }
  for (const mode_t mode : {0600, 0400}) {
    write(mode);
    const auto loaded = load_credentials("", path_);
    ASSERT_TRUE(loaded) << loaded.error().message();
    EXPECT_EQ(loaded->key, "PEM");
  }
}

// A file of another user, as root's with a key that a group of services reads.
TEST_F(credential_files, of_another_user_may_be_readable_by_its_group) {
  write(0640);
  if (geteuid() != 0 || chown(path_.c_str(), 1, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root of the whole machine can give a file away";
  }
  EXPECT_TRUE(load_credentials("", path_));
  for (const mode_t mode : {0644, 0660}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_FALSE(load_credentials("", path_)) << mode;
  }
}

TEST_F(credential_files, certificates_are_for_everybody) {
  write(0644);
  const auto loaded = load_credentials(path_, "", path_);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->certificate, "PEM");
  EXPECT_EQ(loaded->authorities, "PEM");
}

// Regression: opening a pipe that nobody writes to waited for ever, and with it the server that was
// asked to use it.
TEST_F(credential_files, are_regular_files) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  for (const std::string &not_a_file :
       {path_, ::testing::TempDir(), std::string("/dev/zero"), std::string("/dev/null")}) {
    for (const int part : {0, 1, 2}) {
      const std::string paths[] = {part == 0 ? not_a_file : "", part == 1 ? not_a_file : "",
                                   part == 2 ? not_a_file : ""};
      const auto loaded = load_credentials(paths[0], paths[1], paths[2]);
      ASSERT_FALSE(loaded) << not_a_file << ' ' << part;
      EXPECT_TRUE(loaded.error().is(errc::not_supported)) << loaded.error().message();
      EXPECT_EQ(loaded.error().detail().subject, not_a_file);
      EXPECT_STREQ(loaded.error().operation, "migration::load_credentials");
    }
  }
}

}  // namespace
}  // namespace stillmap::migration
