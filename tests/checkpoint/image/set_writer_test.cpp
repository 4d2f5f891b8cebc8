// Sets are written and replaced atomically, whichever system call fails.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "tests/checkpoint/base/refusing_files.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

class set_writers : public image_test {
 protected:
  std::string set_folder() const { return path("a.stillmap"); }

  result<image_id> save(std::span<const sample> images, const set_options &options = {},
                        std::span<const reader> parents = {}) {
    auto w = set_writer::create(set_folder(), static_cast<std::uint32_t>(images.size()), options);
    if (!w) return tl::unexpected(w.error());
    std::vector<set_member> members;
    for (std::uint32_t i = 0; i < images.size(); ++i) {
      write_options image = small();
      image.files = options.files;
      if (!parents.empty()) image.parent = parents[i];
      w->set_membership(i, image);
      contents_in_memory from(images[i].contents);
      const auto one = write(w->path(i), images[i].what, from, image);
      if (!one) return tl::unexpected(one.error());
      members.push_back({one->image, one->file_bytes, one->root});
    }
    if (const auto ok = w->commit(std::move(members)); !ok) return tl::unexpected(ok.error());
    return w->set();
  }

  // The folder holds exactly these images, whole, and no other file.
  void expect_set(std::span<const sample> images, const open_options &options = {}) const {
    const auto there = open_set(set_folder(), options);
    ASSERT_TRUE(there) << there.error().message();
    ASSERT_EQ(there->size(), images.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      const reader &r = (*there)[i];
      EXPECT_EQ(r.manifest(), images[i].what);
      ASSERT_TRUE(r.verify());
      std::vector<std::byte> back(images[i].contents.size());
      ASSERT_TRUE(r.read(0, back));
      EXPECT_TRUE(back == images[i].contents);
    }
  }
  std::size_t files() const {
    return std::filesystem::exists(set_folder()) ? names_in(set_folder()).size() : 0;
  }

  const std::vector<sample> before_ = {make_sample({1, 2, 5}), make_sample({2, 1, 5})};
  const std::vector<sample> after_ = {make_sample({3, 1, 5}), make_sample({4, 2, 5}),
                                      make_sample({5, 1, 5})};
};

// Regression: it removed the images that its parent was writing, and the directory.
TEST_F(set_writers, a_forked_child_removes_nothing) {
  auto made = set_writer::create(set_folder(), 1);
  ASSERT_TRUE(made) << made.error().message();
  std::optional<set_writer> w(std::move(*made));
  write_options image = small();
  w->set_membership(0, image);
  contents_in_memory from(before_[0].contents);
  const auto one = write(w->path(0), before_[0].what, from, image);
  ASSERT_TRUE(one) << one.error().message();
  const pid_t child = ::fork();
  if (child == 0) {
    w.reset();
    ::_exit(0);
  }
  int how = -1;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  EXPECT_EQ(files(), 2u) << "the image and the lock";
  EXPECT_TRUE(w->commit({{one->image, one->file_bytes, one->root}}));
  expect_set({before_.data(), 1});
}

TEST_F(set_writers, a_set_takes_the_place_of_another) {
  ASSERT_TRUE(save(before_));
  expect_set(before_);
  EXPECT_EQ(files(), 3u);
  const auto twice = save(after_);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, std::errc::file_exists);
  expect_set(before_);
  ASSERT_TRUE(save(after_, {.replace = true}));
  expect_set(after_);
  EXPECT_EQ(files(), 4u);
}

TEST_F(set_writers, one_writer_at_a_time) {
  ASSERT_TRUE(save(before_));
  {
    const auto first = set_writer::create(set_folder(), 1, {.replace = true});
    ASSERT_TRUE(first) << first.error().message();
    const auto second = save(after_, {.replace = true});
    ASSERT_FALSE(second);
    EXPECT_TRUE(second.error().is(errc::busy)) << second.error().message();
    expect_set(before_);
  }
  EXPECT_TRUE(save(after_, {.replace = true}));
}

// Regression: whoever could read the folder kept every writer out by locking it.
TEST_F(set_writers, a_lock_of_the_folder_itself_keeps_nobody_out) {
  ASSERT_TRUE(save(before_));
  const owned_fd reader(::open(set_folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(reader.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_TRUE(save(after_, {.replace = true}));
  expect_set(after_);
}

// Regression: a child that was forked meanwhile kept what was being written locked after its parent
// had died, and the room of it.
TEST_F(set_writers, a_forked_child_has_no_descriptor_of_what_is_written) {
  class forking final : public checkpoint::file_system {
   public:
    explicit forking(std::string folder) : folder_(std::move(folder)) {}
    std::vector<int> ended;
    int sync_data(int fd) override {
      fork_and_look();
      return checkpoint::file_system::sync_data(fd);
    }

   private:
    void fork_and_look() {
      std::size_t here = 0;
      for (const auto &fd : std::filesystem::directory_iterator("/proc/self/fd")) {
        here += is_ours(fd);
      }
      EXPECT_NE(here, 0u);
      const pid_t child = ::fork();
      if (child == 0) {
        int found = 0;
        for (const auto &fd : std::filesystem::directory_iterator("/proc/self/fd")) {
          found += is_ours(fd) ? 1 : 0;
        }
        ::_exit(found);
      }
      int how = -1;
      EXPECT_EQ(::waitpid(child, &how, 0), child);
      ended.push_back(how);
    }
    bool is_ours(const std::filesystem::path &fd) const {
      std::error_code none;
      const std::string to = std::filesystem::read_symlink(fd, none);
      const bool is_file = to.starts_with(folder_) && std::filesystem::is_regular_file(to);
      return is_file || to.find("io_uring") != std::string::npos;
    }
    const std::string folder_;
  } calls(path("a").substr(0, path("a").rfind('/')));
  ASSERT_TRUE(save(after_, {.files = &calls}));
  EXPECT_GE(calls.ended.size(), 2u);
  for (const int how : calls.ended) EXPECT_EQ(how, 0);
}

// Network file systems may not lock files: NFS answers EBADF.
TEST_F(set_writers, a_folder_without_locks_is_used_but_no_other_failure_passes) {
  class unlockable final : public checkpoint::file_system {
   public:
    int with = 0;
    int lock(int fd) override {
      // The first is the folder's.
      return ++locks == 1 ? -with : checkpoint::file_system::lock(fd);
    }
    int locks = 0;
  } calls;
  for (const int with : {EOPNOTSUPP, ENOLCK, EINVAL, EBADF}) {
    calls.with = with;
    calls.locks = 0;
    EXPECT_TRUE(save(before_, {.replace = true, .files = &calls})) << with;
    expect_set(before_);
  }
  calls.with = EIO;
  calls.locks = 0;
  const auto w = save(after_, {.replace = true, .files = &calls});
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::io_error) << w.error().message();
  expect_set(before_);
}

TEST_F(set_writers, what_is_no_set_is_left_alone) {
  std::filesystem::create_directory(set_folder());
  put("a.stillmap/memory.smi", before_[0]);
  put("a.stillmap/device-0.smi", before_[0]);
  { ASSERT_TRUE(set_writer::create(set_folder(), 2)); }
  EXPECT_EQ(files(), 2u) << "nothing was committed, and the folder was there";
  ASSERT_TRUE(save(after_));
  ASSERT_TRUE(save(before_, {.replace = true}));
  expect_set(before_);
  EXPECT_EQ(files(), 5u);
  EXPECT_FALSE(set_writer::create(path("no/such/folder"), 2));
  for (const std::uint32_t n : {0u, max_images_in_set + 1}) {
    const auto w = set_writer::create(path("b.stillmap"), n);
    ASSERT_FALSE(w);
    EXPECT_TRUE(w.error().is(errc::invalid_argument));
  }
  EXPECT_FALSE(std::filesystem::exists(path("b.stillmap")));
}

TEST_F(set_writers, what_dead_writers_left_is_removed) {
  ASSERT_TRUE(save(before_));
  const image_id dead = make_id().value();
  put("a.stillmap/" + name_in_set(0, dead), after_[0]);
  put_file(set_folder() + "/." + name_in_set(1, dead) + ".stillmap-abc123", {std::byte{1}});
  put_file(set_folder() + "/.set.stillmap-abc123", {std::byte{1}});
  EXPECT_EQ(files(), 6u);
  { ASSERT_TRUE(set_writer::create(set_folder(), 2, {.replace = true})); }
  expect_set(before_);
  EXPECT_EQ(files(), 3u);
}

TEST_F(set_writers, a_damaged_set_is_replaced_by_nobody) {
  ASSERT_TRUE(save(before_));
  auto bytes = bytes_of_file(set_folder() + "/set");
  bytes[70] ^= std::byte{1};
  put_file(set_folder() + "/set", bytes);
  const auto w = save(after_, {.replace = true});
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::corrupt)) << w.error().message();
  EXPECT_EQ(files(), 3u);
}

TEST_F(set_writers, parents_are_found_in_their_sets_folder) {
  ASSERT_TRUE(save(before_));
  std::filesystem::rename(set_folder(), path("parent.stillmap"));
  const auto parents = open_set(path("parent.stillmap"));
  ASSERT_TRUE(parents);
  const std::vector<sample> later = {changed(before_[0], 7), changed(before_[1], 8)};
  ASSERT_TRUE(save(later, {}, *parents));
  const auto without = open_set(set_folder());
  ASSERT_FALSE(without);
  EXPECT_TRUE(without.error().detail().where.starts_with(part::parent));
  open_options options;
  options.parents = {path("nowhere"), path("parent.stillmap")};
  expect_set(later, options);
  const auto there = open_set(set_folder(), options);
  ASSERT_TRUE(there);
  const auto parent_set = read_set(path("parent.stillmap"));
  EXPECT_TRUE(depends_on((*there)[0], *parent_set)) << "by way of its parent";
  EXPECT_FALSE(depends_on((*parents)[0], *read_set(set_folder())));
}

// Each read sees one set, the old one or the new one.
TEST_F(set_writers, a_set_replaced_while_it_is_opened) {
  class replacing final : public checkpoint::file_system {
   public:
    explicit replacing(std::function<void()> act) : act_(std::move(act)) {}
    std::size_t at = 0;
    int open_at(int d, const char *n, int f, unsigned m) override {
      if (opened_++ == at) act_();
      return checkpoint::file_system::open_at(d, n, f, m);
    }
    bool came() const { return opened_ > at; }

   private:
    std::function<void()> act_;
    std::size_t opened_ = 0;
  };
  std::size_t replaced = 0;
  for (std::size_t at = 0;; ++at) {
    ASSERT_TRUE(save(before_, {.replace = true}));
    replacing calls([&] { ASSERT_TRUE(save(after_, {.replace = true})); });
    calls.at = at;
    open_options options;
    options.files = &calls;
    const auto there = open_set(set_folder(), options);
    ASSERT_TRUE(there) << at << ": " << there.error().message();
    const auto &expected = there->size() == before_.size() ? before_ : after_;
    ASSERT_EQ(there->size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ((*there)[i].manifest(), expected[i].what);
      EXPECT_TRUE((*there)[i].verify());
    }
    if (!calls.came()) break;
    ++replaced;
  }
  EXPECT_GE(replaced, 3u);
}

// Lets each call fail in turn, until there is no further call.
TEST_F(set_writers, whatever_is_refused_it_is_the_old_set_or_the_new_one) {
  ASSERT_TRUE(save(before_));
  std::filesystem::rename(set_folder(), path("before"));
  const std::span<const sample> after(after_.data(), 2);
  std::size_t refused = 0, failed = 0;
  for (const bool replace : {false, true}) {
    for (const int with : {EIO, EINVAL}) {
      if (with == EINVAL && !replace) continue;
      for (std::size_t n = 0;; ++n) {
        SCOPED_TRACE(::testing::Message() << "call " << n << " refused with " << with);
        std::filesystem::remove_all(set_folder());
        if (replace) std::filesystem::copy(path("before"), set_folder());
        checkpoint::refusing_files calls;
        calls.ring = false;
        calls.refuse_at = n;
        calls.with = with;
        const auto w = save(after, {.replace = replace, .files = &calls});
        const bool over = calls.counted() <= n;
        refused += calls.refused().has_value();
        failed += !w;
        EXPECT_TRUE(!over || w) << w.error().message();
        if (w) {
          expect_set(after);
        } else if (replace) {
          expect_set(before_);
        } else {
          EXPECT_FALSE(std::filesystem::exists(set_folder() + "/set")) << w.error().message();
        }
        // At most files that could not be removed are left; the next writer removes them.
        const std::size_t expected = w ? after.size() + 1 : replace ? before_.size() + 1 : 0;
        const auto c = calls.refused();
        if (c != checkpoint::call::unlink && c != checkpoint::call::remove_folder &&
            !(w && c == checkpoint::call::open)) {
          EXPECT_EQ(files(), expected) << (w ? "it worked" : w.error().message());
          EXPECT_EQ(std::filesystem::exists(set_folder()), expected != 0);
        }
        { const auto next = set_writer::create(set_folder(), 1, {.replace = true}); }
        EXPECT_EQ(files(), expected) << "after another writer";
        if (HasFailure()) return;
        if (over) break;
      }
    }
  }
  EXPECT_GT(failed, 30u);
  std::printf("note: %zu calls refused while sets were written: %zu times no new set\n", refused,
              failed);
}

// The commit can neither be made durable nor be taken back: the new set is in place, and it names the
// new images. They stay, also where the set cannot be read to find that out.
TEST_F(set_writers, a_commit_that_cannot_be_taken_back_keeps_its_images) {
  class stuck final : public checkpoint::file_system {
   public:
    bool unreadable = false;
    int failing_syncs = 1000;
    int rename_at(int d, const char *a, const char *b, unsigned f) override {
      if (committed_) return -EACCES;
      committed_ = b == std::string_view("set");
      return checkpoint::file_system::rename_at(d, a, b, f);
    }
    int sync(int fd) override {
      return committed_ && failing_syncs-- > 0 ? -EIO : checkpoint::file_system::sync(fd);
    }
    int open_at(int d, const char *n, int f, unsigned m) override {
      if (committed_ && unreadable && std::string_view(n).ends_with("/set")) return -EIO;
      return checkpoint::file_system::open_at(d, n, f, m);
    }

   private:
    bool committed_ = false;
  };
  for (const auto &[unreadable, failing_syncs] :
       {std::pair{false, 1000}, {true, 1000}, {false, 1}}) {
    std::filesystem::remove_all(set_folder());
    ASSERT_TRUE(save(before_));
    stuck calls;
    calls.unreadable = unreadable;
    calls.failing_syncs = failing_syncs;
    const auto w = save(after_, {.replace = true, .files = &calls});
    ASSERT_FALSE(w);
    EXPECT_EQ(w.error().code, std::errc::io_error) << w.error().message();
    expect_set(after_);
  }
}

}  // namespace
}  // namespace stillmap::image
