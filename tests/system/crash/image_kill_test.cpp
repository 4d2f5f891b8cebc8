// Kills a writer of an image before and after each of its system calls. Afterwards the name
// leads to the old image or the new one, or to nothing if there was none.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "stillmap/checkpoint/base/file_system.h"
#include "tests/checkpoint/image/sample.h"
#include "tests/system/crash/kill_after.h"
#include "tests/system/crash/no_ring.h"

namespace stillmap::image {
namespace {

class image_kill : public image_test {
 protected:
  image_kill() : before_(make_sample({1, 3, 20})), after_(make_sample({2, 4, 30})) {}

  struct setting {
    bool replace, ring, incremental;
    unsigned threads;
  };

  bool be_the_writer(const setting &s, const std::optional<reader> &parent) {
    no_ring calls;
    write_options options = small();
    options.replace = s.replace;
    options.threads = s.threads;
    if (!s.ring) options.files = &calls;
    options.parent = parent;
    contents_in_memory from(after_.contents);
    return write(path("a.smi"), after_.what, from, options).has_value();
  }

  std::size_t kill_everywhere(const setting &s) {
    std::size_t kills = 0, finished = 0, with_old = 0, with_new = 0, with_nothing = 0;
    for (std::size_t n = 1;; ++n) {
      std::filesystem::remove(path("a.smi"));
      std::filesystem::remove(path("parent.smi"));
      if (s.replace) put("a.smi", before_);
      std::optional<reader> parent;
      if (s.incremental) {
        put("parent.smi", after_);
        const auto p = reader::open(path("parent.smi"));
        EXPECT_TRUE(p);
        if (p) parent = *p;
      }
      bool forbidden = false;
      const bool over = testing::kill_after(
          n, [&] { return be_the_writer(s, parent); }, forbidden);
      if (forbidden) return 0;
      ++(over ? finished : kills);
      const bool there = std::filesystem::exists(path("a.smi"));
      const auto r = reader::open(path("a.smi"));
      if (!there) {
        EXPECT_FALSE(s.replace) << "the old image is gone";
        ++with_nothing;
      } else if (!r) {
        ADD_FAILURE() << r.error().message();
      } else if (r->manifest() == before_.what) {
        EXPECT_TRUE(s.replace);
        expect_holds("a.smi", before_);
        ++with_old;
      } else {
        expect_holds("a.smi", after_);
        ++with_new;
      }
      EXPECT_TRUE(!over || with_new != 0);
      // The next writer removes the temporary file if it can lock it: the kernel may release an
      // io_uring's reference to the file a moment after the process is gone.
      write_options again = small();
      again.replace = true;
      again.verify = false;
      const std::size_t expected = s.incremental ? 2 : 1;
      for (int i = 0; i < 200 && (i == 0 || names_in(folder()).size() > expected); ++i) {
        put("a.smi", before_, again);
      }
      EXPECT_EQ(names_in(folder()).size(), expected) << "left over after step " << n;
      if (HasFailure()) {
        ADD_FAILURE() << "killed after step " << n;
        return kills;
      }
      // How many calls a writer with threads makes varies: it may finish before a step that others
      // were killed at, and so before anything was killed with the new image in place.
      if (finished != 0 && (with_new > finished || finished == 100)) break;
    }
    EXPECT_GT(kills, 60u);
    EXPECT_GT(with_new, finished) << "never killed with the new image in place";
    EXPECT_GT(s.replace ? with_old : with_nothing, 50u);
    std::printf(
        "note: a writer of an image killed at %zu steps (%s, %s, %u threads): %zu times the "
        "old image, %zu times the new one, %zu times none\n",
        kills,
        s.incremental ? "incremental"
        : s.replace   ? "replacing"
                      : "new",
        s.ring ? "io_uring" : "plain writes", s.threads, with_old, with_new, with_nothing);
    return kills;
  }

  sample before_, after_;
};

TEST_F(image_kill, at_every_system_call) {
  for (const bool replace : {false, true}) {
    for (const bool ring : {false, true}) {
      if (kill_everywhere({replace, ring, false, 1}) == 0 && !HasFailure()) {
        GTEST_SKIP() << "this machine lets nobody trace system calls";
      }
      if (HasFailure()) return;
    }
  }
  kill_everywhere({false, true, true, 1});
  kill_everywhere({true, true, false, 3});
}

}  // namespace
}  // namespace stillmap::image
