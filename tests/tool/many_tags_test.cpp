// Tasks with more tags than a response of status lists.
#include "stillmap/checkpoint/image/reader.h"
#include "tests/tool/task_test.h"

namespace stillmap::testing {
namespace {

constexpr std::size_t tag_count = 4200;  // a response lists 4,096

class many_tags : public task_test {
 protected:
  void SetUp() override {
    task_test::SetUp();
    if (IsSkipped()) return;
    where_ += ".control";
    control::server_options options;
    options.task.quiesce = [this](auto tags, auto) {
      stopped_ = tags.size();
      return status();
    };
    options.task.released = [this](auto tags) { released_ = tags.size(); };
    start_task(std::move(options));
    // "weights" and "cache" have pages; the others are addresses only, and come before them.
    for (std::size_t i = 2; i < tag_count; ++i) {
      add_addresses("a tag, number " + std::to_string(i),
                    device_address(control::testing::cache_at + (i << 30)));
    }
  }
  std::size_t tags_in(const std::string &image) const {
    const auto r = image::reader::open(image);
    EXPECT_TRUE(r) << r.error().message();
    return r ? r->manifest().tags.size() : 0;
  }

  std::size_t stopped_ = 0, released_ = 0;
};

// Regression: the command asked status for the tags, which lists 4,096, and saved those.
TEST_F(many_tags, a_snapshot_of_all_has_all) {
  const ran r = run("task snapshot " + where_ + " --all -o '" + file("a.smi") + "'");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(tags_in(file("a.smi")), tag_count);
  EXPECT_EQ(stopped_, tag_count);
}

// Regression: a migration ended with "now owned by", and left 104 tags behind.
TEST_F(many_tags, a_migration_of_all_has_all) {
  make_credentials();
  start_destination("there", as("there", "here") + "--records " + records("there"));
  const ran sent = run("task migrate send " + where_ + " --all --to " + place_of("there") +
                       as("here", "there") + "--records " + records("here"));
  ASSERT_EQ(sent.status, 0) << sent.err;
  EXPECT_EQ(stopped_, tag_count);
  EXPECT_EQ(released_, tag_count);
  once("there.out", "stillmap: ok: ");
  const ran saved =
      run("task snapshot '" + control_of("there") + "' --all -o '" + file("b.smi") + "'");
  ASSERT_EQ(saved.status, 0) << saved.err;
  EXPECT_EQ(tags_in(file("b.smi")), tag_count);
}

// Regression: `list` added up the tags that the response had room for.
TEST_F(many_tags, list_counts_all_of_them) {
  const ran r = run("task list --json");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::size_t at = r.out.find("\"socket\": \"" + where_ + "\"");
  ASSERT_NE(at, std::string::npos) << r.out.substr(0, 1000);
  EXPECT_NE(r.out.find("\"omitted_tags\": 104", at), std::string::npos);
}

}  // namespace
}  // namespace stillmap::testing
