// Each system call of writing and reading an image fails in turn: afterwards the name leads to the
// whole new image or to the old one.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "tests/checkpoint/base/refusing_files.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

struct setting {
  bool replace = false, ring = true, direct = true;
  int with = EIO;
  bool for_good = false;
};

class image_fault : public image_test {
 protected:
  image_fault() : before_(make_sample({1, 4, 20})), after_(make_sample({2, 7, 30})) {}

  write_options how_for(const setting &s, checkpoint::refusing_files &calls) {
    write_options options = small();
    options.replace = s.replace;
    options.direct_io = s.direct;
    options.queue_depth = 3;
    options.files = &calls;
    return options;
  }

  // Lets each call fail in turn, until there is no further call. Returns the number of failures.
  std::size_t sweep(const setting &s) {
    std::size_t refused = 0, failed = 0;
    for (std::size_t n = 0;; ++n) {
      checkpoint::refusing_files calls;
      calls.ring = s.ring;
      calls.refuse_at = n;
      calls.with = s.with;
      calls.for_good = s.for_good;
      std::filesystem::remove(path("a.smi"));
      if (s.replace) put("a.smi", before_);
      contents_in_memory from(after_.contents);
      const auto w = write(path("a.smi"), after_.what, from, how_for(s, calls));
      const bool over = calls.counted() <= n;
      if (over) {
        EXPECT_TRUE(w) << w.error().message();
      }
      refused += calls.refused().has_value();
      failed += !w;
      if (w) {
        expect_holds("a.smi", after_);
        if (calls.refused()) expect_harmless(*calls.refused(), s.with);
      } else {
        EXPECT_NE(s.with, checkpoint::refusing_files::half)
            << "the rest is written: " << w.error().message();
        EXPECT_FALSE(w.error().message().empty());
        EXPECT_EQ(w.error().detail().subject, path("a.smi"));
        if (s.replace) {
          expect_holds("a.smi", before_);
        } else {
          EXPECT_FALSE(std::filesystem::exists(path("a.smi")));
        }
      }
      // At most a file that could not be removed is left; the next writer removes it.
      const std::size_t names = names_in(folder()).size();
      const std::size_t image = std::filesystem::exists(path("a.smi")) ? 1 : 0;
      if (calls.refused() != checkpoint::call::unlink) {
        EXPECT_EQ(names, image) << "after call " << n;
      } else if (names > image) {
        write_options again = small();
        again.replace = true;
        put("a.smi", after_, again);
        EXPECT_EQ(names_in(folder()).size(), 1u);
      }
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "call " << n << " of kind "
                      << static_cast<int>(calls.refused().value_or(checkpoint::call::open))
                      << " refused with " << s.with << (w ? "" : ": " + w.error().message());
        return refused;
      }
      if (over) break;
    }
    EXPECT_GT(refused, 0u);
    if (s.with == EIO) {
      EXPECT_GT(failed, 10u);
    }
    return refused;
  }

  // Calls that may fail without an error of the image.
  static void expect_harmless(checkpoint::call c, int with) {
    const bool fine = with == checkpoint::refusing_files::half || c == checkpoint::call::close ||
                      c == checkpoint::call::set_aside || c == checkpoint::call::drop_cached ||
                      c == checkpoint::call::unlink || c == checkpoint::call::status_at ||
                      c == checkpoint::call::status ||
                      (with == EINVAL && c != checkpoint::call::sync_data);
    EXPECT_TRUE(fine) << static_cast<int>(c) << " was refused with " << with
                      << " and nobody noticed";
  }

  sample before_, after_;
};

TEST_F(image_fault, every_call_refused) {
  std::size_t refused = 0;
  for (const bool replace : {false, true}) {
    for (const bool ring : {false, true}) {
      for (const int with : {EIO, ENOSPC, EINVAL, checkpoint::refusing_files::half}) {
        setting s;
        s.replace = replace;
        s.ring = ring;
        s.with = with;
        SCOPED_TRACE(::testing::Message() << replace << ring << " " << with);
        refused += sweep(s);
        if (HasFailure()) return;
      }
    }
  }
  setting s;
  s.direct = false;
  for (const int with : {EIO, checkpoint::refusing_files::half}) {
    s.with = with;
    refused += sweep(s);
  }
  std::printf("note: %zu calls refused while images were written\n", refused);
}

TEST_F(image_fault, a_disk_that_is_full_and_stays_full) {
  for (const bool ring : {false, true}) {
    setting s;
    s.replace = true;
    s.ring = ring;
    s.with = ENOSPC;
    s.for_good = true;
    sweep(s);
  }
}

TEST_F(image_fault, interrupted_calls_are_made_again) {
  for (const int with : {EINTR, EAGAIN}) {
    for (std::size_t n = 0;; ++n) {
      checkpoint::refusing_files calls;
      calls.only = checkpoint::call::ring;
      calls.refuse_at = n;
      calls.with = with;
      setting s;
      s.replace = true;
      contents_in_memory from(after_.contents);
      const auto w = write(path("a.smi"), after_.what, from, how_for(s, calls));
      ASSERT_TRUE(w) << w.error().message();
      expect_holds("a.smi", after_);
      if (calls.counted() <= n) break;
      EXPECT_EQ(calls.refused(), checkpoint::call::ring);
    }
  }
}

// As some do that refuse O_DIRECT.
TEST_F(image_fault, file_systems_that_create_the_file_and_fail) {
  class creating final : public checkpoint::file_system {
   public:
    int refused = 0;
    int open_at(int d, const char *n, int f, unsigned m) override {
      if ((f & O_DIRECT) == 0 || (f & O_CREAT) == 0)
        return checkpoint::file_system::open_at(d, n, f, m);
      const int fd = checkpoint::file_system::open_at(d, n, f & ~O_DIRECT, m);
      if (fd >= 0) checkpoint::file_system::close(fd);
      ++refused;
      return -EINVAL;
    }
    bool is_in_memory(int) override { return false; }
  };
  creating calls;
  write_options options = small();
  options.files = &calls;
  put("a.smi", before_, options);
  EXPECT_GT(calls.refused, 0);
  expect_holds("a.smi", before_);
  EXPECT_EQ(names_in(folder()).size(), 1u);
}

TEST_F(image_fault, file_systems_that_cannot_exchange_names) {
  // EINVAL for every renameat2 with flags, as some file systems return.
  class plain final : public checkpoint::file_system {
    int rename_at(int d, const char *a, const char *b, unsigned f) override {
      return f != 0 ? -EINVAL : checkpoint::file_system::rename_at(d, a, b, f);
    }
  };
  plain calls;
  write_options options = small();
  options.files = &calls;
  put("a.smi", before_, options);
  expect_holds("a.smi", before_);
  contents_in_memory from(after_.contents);
  const auto w = write(path("a.smi"), after_.what, from, options);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::file_exists);
  options.replace = true;
  put("a.smi", after_, options);
  expect_holds("a.smi", after_);
  EXPECT_EQ(names_in(folder()).size(), 1u);
}

// The new name can neither be made durable nor be taken back: no image is left under it.
TEST_F(image_fault, a_name_that_cannot_be_taken_back_is_removed) {
  class stuck final : public checkpoint::file_system {
   public:
    int sync(int) override { return -EIO; }
    int rename_at(int d, const char *a, const char *b, unsigned f) override {
      return renamed_++ == 0 ? checkpoint::file_system::rename_at(d, a, b, f) : -EACCES;
    }

   private:
    int renamed_ = 0;
  };
  for (const bool replace : {false, true}) {
    stuck calls;
    write_options options = small();
    options.files = &calls;
    options.replace = replace;
    contents_in_memory from(after_.contents);
    const auto w = write(path("a.smi"), after_.what, from, options);
    ASSERT_FALSE(w);
    EXPECT_EQ(w.error().code, std::errc::io_error) << w.error().message();
    EXPECT_TRUE(names_in(folder()).empty());
  }
}

// A disk that corrupts writes is detected by reading back, before the image gets its name.
TEST_F(image_fault, a_disk_that_lies) {
  class lying final : public checkpoint::file_system {
   public:
    std::size_t at = 0, writes = 0;
    bool may_use_ring() override { return false; }
    long write_at(int fd, const void *from, std::size_t bytes, std::uint64_t offset) override {
      if (writes++ != at) return checkpoint::file_system::write_at(fd, from, bytes, offset);
      auto other = checkpoint::aligned_memory::create(bytes).value();
      std::memcpy(other.bytes().data(), from, bytes);
      other.bytes()[bytes / 3] ^= std::byte{4};
      return checkpoint::file_system::write_at(fd, other.bytes().data(), bytes, offset);
    }
  };
  put("a.smi", before_);
  for (std::size_t at = 0;; ++at) {
    lying calls;
    calls.at = at;
    write_options options = small();
    options.files = &calls;
    options.replace = true;
    contents_in_memory from(after_.contents);
    const auto w = write(path("a.smi"), after_.what, from, options);
    if (calls.writes <= at) {
      EXPECT_TRUE(w);
      EXPECT_GT(at, 5u);
      break;
    }
    ASSERT_FALSE(w) << "write " << at;
    EXPECT_TRUE(w.error().is(errc::corrupt)) << w.error().message();
    expect_holds("a.smi", before_);
    EXPECT_EQ(names_in(folder()).size(), 1u);
  }
}

// Regression: the kernel ended the process, the task, by SIGXFSZ.
TEST_F(image_fault, a_limit_on_the_size_of_files_is_an_error) {
  put("a.smi", before_);
  for (const bool ring : {false, true}) {
    for (const rlim_t limit : {rlim_t{1000}, rlim_t{100'000}}) {
      const pid_t child = ::fork();
      if (child == 0) {
        const rlimit now{limit, limit};
        if (std::signal(SIGXFSZ, SIG_DFL) == SIG_ERR || ::setrlimit(RLIMIT_FSIZE, &now) != 0) {
          ::_exit(2);
        }
        checkpoint::refusing_files calls;
        setting s;
        s.ring = calls.ring = ring;
        s.replace = true;
        contents_in_memory from(after_.contents);
        const auto w = write(path("a.smi"), after_.what, from, how_for(s, calls));
        ::_exit(!w && w.error().code == std::errc::file_too_large ? 0 : 1);
      }
      int how = 0;
      ASSERT_EQ(::waitpid(child, &how, 0), child);
      EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0)
          << (WIFSIGNALED(how) ? "ended by signal " : "exit status ")
          << (WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how)) << " at " << limit;
      expect_holds("a.smi", before_);
    }
  }
}

TEST_F(image_fault, the_name_is_taken_once_everything_is_synced) {
  for (const bool ring : {false, true}) {
    checkpoint::refusing_files calls;
    setting s;
    s.ring = ring;
    put("a.smi", before_, how_for(s, calls));
    s.replace = true;
    put("a.smi", after_, how_for(s, calls));
    EXPECT_EQ(calls.renames.load(), 2u);
    EXPECT_EQ(calls.unsure_at_rename.load(), 0u);
    std::filesystem::remove(path("a.smi"));
  }
}

TEST_F(image_fault, every_call_refused_while_reading) {
  put("a.smi", before_);
  write_options child = small();
  child.parent = *reader::open(path("a.smi"));
  const sample s = changed(before_, 3);
  put("b.smi", s, child);
  std::size_t failed = 0;
  for (const int with : {EIO, checkpoint::refusing_files::half}) {
    for (std::size_t n = 0;; ++n) {
      checkpoint::refusing_files calls;
      calls.refuse_at = n;
      calls.with = with;
      open_options options;
      options.files = &calls;
      const auto r = reader::open(path("b.smi"), options);
      std::vector<std::byte> to(s.contents.size(), std::byte{1});
      status ok;
      if (r) {
        ok = r->read(0, to);
        EXPECT_TRUE(ok ? std::equal(to.begin(), to.end(), s.contents.begin()) : all_zero(to));
      }
      failed += !r || !ok;
      if (calls.counted() <= n) {
        EXPECT_TRUE(r && ok);
        break;
      }
      EXPECT_TRUE(with != checkpoint::refusing_files::half || (r && ok)) << n;
    }
  }
  EXPECT_GT(failed, 10u);
}

// Aligned memory is read in place, and no other is given to a file that is open for direct I/O.
TEST_F(image_fault, only_aligned_memory_is_read_directly) {
  class watching final : public checkpoint::file_system {
   public:
    std::vector<const std::byte *> into;
    long read_at(int fd, void *p, std::size_t n, std::uint64_t o) override {
      into.push_back(static_cast<const std::byte *>(p));
      return checkpoint::file_system::read_at(fd, p, n, o);
    }
  };
  std::vector<std::byte> contents(2 * block_bytes);
  for (std::size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<std::byte>(i % 251);
  put_file(path("a"), contents);
  watching calls;
  const int fd = calls.open_at(AT_FDCWD, path("a").c_str(), O_RDONLY | O_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  checkpoint::block_file file(calls, fd, true);  // not every file system has direct I/O
  auto room = checkpoint::aligned_memory::create(3 * block_bytes).value();
  for (const std::size_t from : {std::size_t{0}, std::size_t{1}, std::size_t{64}, block_bytes}) {
    const auto to = room.bytes().subspan(from, contents.size());
    calls.into.clear();
    ASSERT_TRUE(file.read(to, 0));
    EXPECT_TRUE(std::equal(to.begin(), to.end(), contents.begin())) << from;
    ASSERT_EQ(calls.into.size(), 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(calls.into[0]) % block_bytes, 0u) << from;
    EXPECT_EQ(calls.into[0] == to.data(), from % block_bytes == 0) << from;
  }
}

// With compression or a parent, far fewer bytes may be stored: the disk is not filled for them.
TEST_F(image_fault, space_is_preallocated_only_where_all_contents_are_stored) {
  class watching final : public checkpoint::file_system {
   public:
    std::vector<std::uint64_t> asked;
    int preallocate(int fd, std::uint64_t n) override {
      asked.push_back(n);
      return checkpoint::file_system::preallocate(fd, n);
    }
  };
  watching calls;
  write_options options = small();
  options.files = &calls;
  put("plain.smi", before_, options);
  EXPECT_EQ(calls.asked, (std::vector<std::uint64_t>{block_bytes + before_.contents.size()}));
  calls.asked.clear();
  options.parent = *reader::open(path("plain.smi"));
  put("child.smi", changed(before_, 3), options);
  options.parent.reset();
  options.compress = codec::lz4;
  put("lz4.smi", before_, options);
  options.compress = codec::none;
  put("empty.smi", {}, options);
  EXPECT_TRUE(calls.asked.empty());
}

}  // namespace
}  // namespace stillmap::image
