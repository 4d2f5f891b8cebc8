// Each host allocation of writing and reading images and sets fails in turn: the name then leads to
// the whole new image or to the old one, and nothing else is left.
#include <algorithm>
#include <filesystem>
#include <new>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/image/keys.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "tests/checkpoint/image/sample.h"
#include "tests/support/host_memory_sweep.h"

namespace stillmap::image {
namespace {

using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::one_in;

// A write syncs files, which takes dozens of milliseconds.
constexpr std::uint64_t writes = 11;

std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class image_without_host_memory : public image_test {
 protected:
  image_without_host_memory()
      : before_(make_sample({1, 4, 20})), after_(changed(before_, 2)), key_(*make_secret_key()) {}

  // Runs `act` with one allocation failing. Whatever happens, no descriptor is left open, and the
  // directory has the files that it had, and those of `made` if it succeeded.
  template <class Act>
  void try_to(failing_allocation &failing, const Act &act, std::vector<std::string> made = {}) {
    std::vector<std::string> names = names_in(folder());
    const auto open = descriptors();
    {
      const auto done = failing(act);
      if (done) names.insert(names.end(), made.begin(), made.end());
      std::sort(names.begin(), names.end());
    }
    EXPECT_EQ(names_in(folder()), names);
    EXPECT_EQ(descriptors(), open);
  }

  // Writing `name` anew and in place of an image, by write() or flatten().
  template <class Write>
  void sweep_writes(const std::string &name, const open_options &opening, const Write &write) {
    for (const bool all_after : {false, true}) {
      all_ += fail_each_allocation(
          [&](failing_allocation &failing) {
            try_to(failing, [&] { return write(false); }, {name});
            if (!failing.done()) {
              ASSERT_TRUE(write(false));
            }
            expect_holds(name, after_, opening);
            std::filesystem::remove(path(name));
          },
          all_after, one_in(writes));
    }
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          put(name, before_);
          try_to(failing, [&] { return write(true); });
          if (failing.done()) {
            expect_holds(name, after_, opening);
          } else {
            expect_holds(name, before_);
          }
          std::filesystem::remove(path(name));
        },
        false, one_in(writes));
  }

  const sample before_, after_;
  const secret_key key_;
  allocation_sweep all_;
};

TEST_F(image_without_host_memory, a_name_leads_to_a_whole_image) {
  // What these functions call is the library alone: their own allocations would fail, too.
  contents_in_memory from(after_.contents);
  write_options options = small();
  const std::string a = path("a.smi"), b = path("b.smi"), c = path("c.smi"), d = path("d.smi");
  sweep_writes("a.smi", {}, [&](bool replace) {
    options.replace = replace;
    return write(a, after_.what, from, options);
  });
  ASSERT_FALSE(HasFailure());
  // Compressed, encrypted, signed and incremental.
  options.key = key_;
  put("parent.smi", before_, options);
  options.key.reset();
  open_options opening;
  opening.key = key_;
  const auto parent = reader::open(path("parent.smi"), opening);
  ASSERT_TRUE(parent);
  write_options everything = small();
  everything.compress = codec::zstd;
  everything.key = key_;
  everything.sign_with = *make_signing_key();
  everything.parent = *parent;
  sweep_writes("b.smi", opening, [&](bool replace) {
    everything.replace = replace;
    return write(b, after_.what, from, everything);
  });
  ASSERT_FALSE(HasFailure());
  everything.replace = false;
  ASSERT_TRUE(write(c, after_.what, from, everything));
  const auto incremental = reader::open(c, opening);
  ASSERT_TRUE(incremental) << incremental.error().message();
  sweep_writes("d.smi", {}, [&](bool replace) {
    options.replace = replace;
    return flatten(*incremental, d, options);
  });
  ASSERT_FALSE(HasFailure());

  // Reading. Its parent is found by searching the directory.
  std::vector<std::byte> contents(after_.contents.size());
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          try_to(failing, [&] { return reader::open(c, opening); });
        },
        all_after);
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const auto fresh = reader::open(c, opening);
          ASSERT_TRUE(fresh);
          std::fill(contents.begin(), contents.end(), std::byte{1});
          try_to(failing, [&] { return fresh->read(0, contents); });
          EXPECT_EQ(contents,
                    failing.done() ? after_.contents : std::vector<std::byte>(contents.size()));
          EXPECT_TRUE(fresh->read(0, contents));
          EXPECT_EQ(contents, after_.contents);
        },
        all_after);
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const auto fresh = reader::open(c, opening);
          ASSERT_TRUE(fresh);
          verify_options one;
          one.threads = 1;
          try_to(failing, [&] { return fresh->verify(one); });
          EXPECT_TRUE(fresh->verify(one));
        },
        all_after);
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(200));
  all_.note("image", one_in(2) == 1 ? "" : " (one in 11 of writes)");
}

// The call that commits, at each of its allocations: with clang it once allocated after it had committed.
TEST_F(image_without_host_memory, what_failed_has_committed_no_set) {
  image_set s;
  s.set = make_id().value();
  s.images.resize(2);
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          try_to(failing, [&] { return write_set(folder(), s); }, {"set"});
          std::filesystem::remove(path("set"));
        },
        all_after, 1);
  }
  EXPECT_GT(all_.points, 10u);
}

// Sets: the whole old one or the whole new one, and no image of another.
TEST_F(image_without_host_memory, a_set_is_whole_or_not_there) {
  const std::string place = path("set");
  // The allocations of this function itself.
  const auto own = [](const auto &allocate) -> status {
    try {
      allocate();
      return {};
    } catch (const std::bad_alloc &) {
      return make_error(errc::out_of_memory, "memory of the test");
    }
  };
  const auto save = [&](bool replace) -> status {
    auto set = set_writer::create(place, 2, {.replace = replace});
    if (!set) return tl::unexpected(set.error());
    std::vector<set_member> members;
    for (std::uint32_t i = 0; i < 2; ++i) {
      write_options options = small();
      set->set_membership(i, options);
      contents_in_memory from(after_.contents);
      std::string name;
      if (status s = own([&] { name = set->path(i); }); !s) return s;
      const auto w = write(name, after_.what, from, options);
      if (!w) return tl::unexpected(w.error());
      if (status s = own([&] { members.push_back({w->image, w->file_bytes, w->root}); }); !s) {
        return s;
      }
    }
    return set->commit(std::move(members));
  };
  const auto files = [&] {
    std::vector<std::string> names;
    if (std::filesystem::exists(place)) names = names_in(place);
    return names;
  };
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const auto open = descriptors();
          const bool done = failing([&] { return save(false); }).has_value();
          EXPECT_EQ(files().size(), done ? 3u : 0u);
          EXPECT_EQ(descriptors(), open);
          EXPECT_EQ(std::filesystem::exists(place), failing.done());
          if (!failing.done()) {
            ASSERT_TRUE(save(false));
          }
          EXPECT_EQ(files().size(), 3u);
          EXPECT_TRUE(open_set(place));
          std::filesystem::remove_all(place);
        },
        all_after, one_in(2 * writes));
  }
  ASSERT_FALSE(HasFailure());
  ASSERT_TRUE(save(false));
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const auto old = read_set(place);
          ASSERT_TRUE(old);
          const std::vector<std::string> before = files();
          const auto open = descriptors();
          if (!failing([&] { return save(true); })) {
            EXPECT_EQ(files(), before);
            EXPECT_EQ(read_set(place).value(), *old);
          }
          EXPECT_EQ(descriptors(), open);
          EXPECT_EQ(files().size(), 3u);
          EXPECT_TRUE(open_set(place));
        },
        all_after, one_in(2 * writes));
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const auto open = descriptors();
          (void)failing([&] { return open_set(place); });
          EXPECT_EQ(descriptors(), open);
        },
        all_after);
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(100));
  all_.note("image sets", one_in(2) == 1 ? "" : " (one in 22 of writes)");
}

}  // namespace
}  // namespace stillmap::image
