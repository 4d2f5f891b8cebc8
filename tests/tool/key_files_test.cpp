// Files of keys that the command reads.
#include <sys/stat.h>

#include <fstream>

#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

class key_files : public command_test {
 protected:
  std::string write(const char *name, mode_t mode) const {
    std::string path = folder_ / name;
    std::ofstream(path) << std::string(64, 'a');
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
};

TEST_F(key_files, that_others_may_read_are_refused) {
  const ran loose = run("image inspect --key '" + write("loose", 0644) + "' /nowhere.smi");
  EXPECT_EQ(loose.status, 5) << loose.err;
  for (const char *says : {"/loose: ", "mode 0644", "chmod 600"}) {
    EXPECT_NE(loose.err.find(says), std::string::npos) << loose.err;
  }
  // The image does not exist, but the keys are good.
  EXPECT_EQ(run("image inspect --key '" + write("own", 0600) + "' /nowhere.smi").status, 3);
  EXPECT_EQ(run("image inspect --signed-by '" + write("public", 0644) + "' /nowhere.smi").status,
            3);
}

TEST_F(key_files, of_an_end_of_a_migration_are_read_in_the_same_way) {
  const std::string own = (folder_ / "own").string(), key = own + "/key.pem";
  const ran made = run("task migrate credentials '" + own + "'");
  ASSERT_EQ(made.status, 0) << made.err;
  const auto receive = [&] {
    return run("task migrate receive 127.0.0.1:0 --timeout 1 --credentials '" + own +
               "' --peer-fingerprint " + std::string(64, 'a') + " --records '" + folder_.string() +
               "'");
  };
  ASSERT_EQ(chmod(key.c_str(), 0640), 0);
  const ran refused = receive();
  EXPECT_EQ(refused.status, 5) << refused.err;
  EXPECT_NE(refused.err.find("key.pem: "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("mode 0640"), std::string::npos) << refused.err;
  ASSERT_EQ(chmod(key.c_str(), 0600), 0);
  EXPECT_EQ(receive().err.find("key.pem"), std::string::npos);
}

}  // namespace
}  // namespace stillmap::testing
