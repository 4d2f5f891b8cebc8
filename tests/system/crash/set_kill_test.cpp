// Kills a writer of a set at each of its system calls. Afterwards the folder holds the old set or
// the new one, or none if there was none; never a mixture.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "tests/checkpoint/image/sample.h"
#include "tests/system/crash/kill_after.h"
#include "tests/system/crash/no_ring.h"

namespace stillmap::image {
namespace {

class set_kill : public image_test {
 protected:
  std::string set_folder() const { return path("a.stillmap"); }

  bool save(const std::vector<sample> &images) const {
    no_ring calls;
    auto w = set_writer::create(set_folder(), static_cast<std::uint32_t>(images.size()),
                                {.replace = true, .files = &calls});
    std::vector<set_member> members;
    for (std::uint32_t i = 0; w && i < images.size(); ++i) {
      write_options image = small();
      image.files = &calls;
      w->set_membership(i, image);
      contents_in_memory from(images[i].contents);
      const auto one = write(w->path(i), images[i].what, from, image);
      if (!one) return false;
      members.push_back({one->image, one->file_bytes, one->root});
    }
    return w && w->commit(std::move(members));
  }

  // Whether the folder holds the whole set of these images.
  bool is(const std::vector<sample> &images) const {
    const auto there = open_set(set_folder());
    if (!there || there->size() != images.size()) return false;
    for (std::size_t i = 0; i < images.size(); ++i) {
      if ((*there)[i].manifest() != images[i].what || !(*there)[i].verify()) return false;
    }
    return true;
  }

  const std::vector<sample> before_ = {make_sample({1, 1, 5}), make_sample({2, 1, 5})};
  const std::vector<sample> after_ = {make_sample({3, 1, 5}), make_sample({4, 1, 5})};
};

TEST_F(set_kill, at_every_system_call) {
  ASSERT_TRUE(save(before_));
  std::filesystem::rename(set_folder(), path("before"));
  for (const bool replace : {false, true}) {
    std::size_t kills = 0, with_old = 0, with_new = 0, with_nothing = 0;
    for (std::size_t n = 1;; ++n) {
      std::filesystem::remove_all(set_folder());
      if (replace) std::filesystem::copy(path("before"), set_folder());
      bool forbidden = false;
      const bool over = testing::kill_after(
          n, [&] { return save(after_); }, forbidden);
      if (forbidden) GTEST_SKIP() << "this machine lets nobody trace system calls";
      kills += !over;
      if (!std::filesystem::exists(set_folder() + "/set")) {
        EXPECT_FALSE(replace) << "the old set is gone";
        ++with_nothing;
      } else if (is(after_)) {
        ++with_new;
      } else {
        EXPECT_TRUE(replace && is(before_)) << "neither the old set nor the new one";
        ++with_old;
      }
      // The next writer removes the files that the killed one left.
      ASSERT_TRUE(save(before_)) << "after step " << n;
      EXPECT_EQ(names_in(set_folder()).size(), 3u) << "left over after step " << n;
      ASSERT_FALSE(HasFailure()) << "killed after step " << n;
      if (over) break;
    }
    EXPECT_GT(kills, 100u);
    EXPECT_GT(with_new, 1u);
    EXPECT_GT(replace ? with_old : with_nothing, 80u);
    std::printf(
        "note: a writer of a set killed at %zu steps (%s): %zu times the old set, %zu times the "
        "new "
        "one, %zu times none\n",
        kills, replace ? "replacing" : "new", with_old, with_new, with_nothing);
  }
}

}  // namespace
}  // namespace stillmap::image
