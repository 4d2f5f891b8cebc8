// Recorded traces are complete and in order, from any thread and however the program ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

namespace fs = std::filesystem;
using namespace literals;

std::string content(const fs::path &path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}
// Without the comments.
std::string lines_of(const fs::path &path) {
  const std::string text = content(path);
  const auto read = read_trace(text);
  EXPECT_TRUE(read) << read.error().about(path.string()).message();
  return read ? to_text(*read).substr(std::string("# stillmap-trace v1\n").size()) : "";
}

template <class Result>
bool is(const Result &r, errc what) {
  return !r && r.error().is(what);
}

fs::path fresh_folder() {
  static int made = 0;
  const fs::path folder =
      fs::path(::testing::TempDir()) /
      ("stillmap_record_" + std::to_string(::getpid()) + "_" + std::to_string(made++));
  fs::create_directories(folder);
  return folder;
}

class record : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    folder_ = fresh_folder();
    options_.record_to = (folder_ / "t.trace").string();
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
    buffer_test::TearDown();
  }
  std::unique_ptr<caching_allocator> make() {
    auto made = caching_allocator::create(dev(), options_);
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }

  fs::path folder_;
  caching_allocator_options options_;
};

TEST_F(record, every_request_is_a_line) {
  const stream s = make_stream(), t = make_stream();
  auto heap = make();
  void *const a = *heap->allocate(1000, s);
  void *const b = *heap->allocate(3_MiB, t);
  ASSERT_TRUE(heap->record_use(a, t));
  ASSERT_TRUE(heap->record_use(a, s));  // its own: nothing new
  heap->mark_iteration();
  ASSERT_TRUE(heap->free(a));
  ASSERT_TRUE(heap->free(b, s));  // its last use was elsewhere
  EXPECT_TRUE(is(heap->free(b), errc::invalid_argument));
  EXPECT_TRUE(heap->free(nullptr));
  EXPECT_EQ(*heap->allocate(0, s), nullptr);
  EXPECT_TRUE(is(heap->allocate(std::size_t{1} << 60, s), errc::out_of_memory));
  ASSERT_TRUE(heap->allocate(5, t));  // still there at the end
  heap.reset();
  EXPECT_EQ(lines_of(options_.record_to),
            "a,0,1000,0\na,1,3145728,1\nu,0,1\ni\nf,0\nu,1,0\nf,1\na,2,5,1\nf,2\n");
}

TEST_F(record, allocators_of_one_process_share_the_file_and_one_that_is_there_is_kept) {
  const stream s = make_stream();
  auto first = make(), second = make();
  void *const a = *first->allocate(10, s);
  ASSERT_TRUE(second->allocate(20, s));
  second.reset();
  ASSERT_TRUE(first->free(a));
  first.reset();
  EXPECT_EQ(lines_of(options_.record_to), "a,0,10,0\na,1,20,0\nf,1\nf,0\n");

  options_.record_to = (folder_ / "there").string();
  std::ofstream(options_.record_to) << "mine";
  auto heap = make();
  ASSERT_TRUE(heap->allocate(30, s));
  heap.reset();
  EXPECT_EQ(content(options_.record_to), "mine");
  EXPECT_EQ(lines_of(options_.record_to + "." + std::to_string(::getpid())), "a,0,30,0\nf,0\n");
}

TEST_F(record, the_environment_says_where_and_its_mistakes_stop_nobody) {
  options_.record_to.clear();
  const stream s = make_stream();
  const std::string path = (folder_ / "e.trace").string();
  ASSERT_EQ(::setenv("STILLMAP_RECORD", path.c_str(), 1), 0);
  auto heap = make();
  ASSERT_EQ(::unsetenv("STILLMAP_RECORD"), 0);
  ASSERT_TRUE(heap->allocate(7, s));
  heap.reset();
  EXPECT_EQ(lines_of(path), "a,0,7,0\nf,0\n");

  expect_unreturnable();
  const std::uint64_t before = background_error_count();
  const std::string nowhere = (folder_ / "no/such/folder").string();
  ASSERT_EQ(::setenv("STILLMAP_RECORD", nowhere.c_str(), 1), 0);
  heap = make();
  ASSERT_EQ(::unsetenv("STILLMAP_RECORD"), 0);
  ASSERT_TRUE(heap->allocate(7, s));
  heap.reset();
  options_.record_to = nowhere;
  const auto refused = caching_allocator::create(dev(), options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, std::errc::no_such_file_or_directory)
      << refused.error().message();
  EXPECT_EQ(refused.error().detail().subject, nowhere);
  EXPECT_EQ(background_error_count() - before, 1u);
}

// The same address goes from thread to thread: its free must be written before its next allocation.
TEST_F(record, threads_make_one_order) {
  const stream s = make_stream();
  auto heap = make();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        const auto got = heap->allocate(4096, s);
        ASSERT_TRUE(got);
        ASSERT_TRUE(heap->free(*got));
      }
    });
  }
  for (std::thread &t : threads) t.join();
  heap.reset();
  const auto read = read_trace(content(options_.record_to));  // refuses an id that is live already
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.blocks, 8000u);
  EXPECT_EQ(read->totals.live_blocks, 0u);
}

// Needs no driver, so that the child of a fork can be the program.
TEST(recorder, a_killed_program_leaves_what_was_flushed) {
  const fs::path folder = fresh_folder();
  const std::string path = (folder / "t.trace").string();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto r = trace_recorder::open(path);
    if (!r) ::_exit(1);
    const auto block = [](std::uintptr_t n) { return reinterpret_cast<const void *>(n); };
    for (std::uintptr_t i = 1; i <= 10'000; ++i) (*r)->allocated(nullptr, block(i), 100, 0, {});
    (*r)->iteration();  // flushes
    (*r)->freed(block(1));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  const auto read = read_trace(content(path));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.blocks, 10'000u);
  EXPECT_EQ(read->totals.iterations, 1u);
  fs::remove_all(folder);
}

// The file then has descriptor 0.
TEST(recorder, a_program_without_standard_input_is_recorded) {
  const fs::path folder = fresh_folder();
  const fs::path path = folder / "t.trace";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(STDIN_FILENO);
    const auto r = trace_recorder::open(path.string());
    if (!r) ::_exit(1);
    (*r)->allocated(nullptr, &folder, 100, 0, {});
    (*r)->flush();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(lines_of(path), "a,0,100,0\n");
  fs::remove_all(folder);
}

TEST(recorder, a_child_of_a_fork_leaves_its_parents_file_alone) {
  const fs::path folder = fresh_folder();
  const std::string path = (folder / "t.trace").string();
  const auto r = trace_recorder::open(path);
  ASSERT_TRUE(r);
  (*r)->allocated(nullptr, &folder, 100, 0, {});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (*r)->freed(&folder);
    (*r)->flush();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  (*r)->flush();
  EXPECT_EQ(lines_of(path), "a,0,100,0\n");
  fs::remove_all(folder);
}

// What is kept in memory is bounded: a long trace is written as it grows, in whole lines.
TEST(recorder, a_long_trace_is_written_piece_by_piece) {
  const fs::path folder = fresh_folder();
  const fs::path path = folder / "t.trace";
  const auto r = trace_recorder::open(path.string());
  ASSERT_TRUE(r);
  std::uintmax_t written = fs::file_size(path), recorded = written;
  for (std::uintptr_t i = 1; i <= 20'000; ++i) {
    (*r)->allocated(nullptr, reinterpret_cast<const void *>(i), 100, 0, {});
    recorded += ("a," + std::to_string(i - 1) + ",100,0\n").size();
    const std::uintmax_t now = fs::file_size(path);
    ASSERT_LT(recorded - now, 64_KiB);
    if (std::exchange(written, now) != now) {
      ASSERT_EQ(content(path).back(), '\n');
    }
  }
  (*r)->flush();
  EXPECT_EQ(fs::file_size(path), recorded);
  const auto read = read_trace(content(path));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.blocks, 20'000u);
  fs::remove_all(folder);
}

TEST(recorder, lines_older_than_a_quarter_of_a_second_are_written_with_later_ones) {
  const fs::path folder = fresh_folder();
  const fs::path path = folder / "t.trace";
  const auto r = trace_recorder::open(path.string());
  ASSERT_TRUE(r);
  int block[100];
  (*r)->allocated(nullptr, &block[0], 100, 0, {});
  EXPECT_EQ(lines_of(path), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(260));
  for (int i = 1; i < 100; ++i) (*r)->allocated(nullptr, &block[i], 100, 0, {});
  EXPECT_EQ(lines_of(path).substr(0, 10), "a,0,100,0\n");
  fs::remove_all(folder);
}

TEST(recorder, streams_beyond_those_of_the_format_share_the_last_number) {
  const fs::path folder = fresh_folder();
  const fs::path path = folder / "t.trace";
  const auto r = trace_recorder::open(path.string());
  ASSERT_TRUE(r);
  const auto number = [](std::uintptr_t n) {
    return stream_ref(reinterpret_cast<stream_handle>(n));
  };
  std::vector<char> blocks(trace_max_streams + 4);
  std::size_t next = 0;
  const auto allocate = [&](int device, std::uintptr_t s) {
    (*r)->allocated(nullptr, &blocks[next++], 100, device, number(s));
  };
  for (std::uintptr_t s = 1; s <= trace_max_streams / 2; ++s) {
    allocate(0, s);
    allocate(1, s);  // another one, though its handle has the same value
  }
  allocate(0, 2);
  allocate(0, trace_max_streams);
  allocate(2, 1);
  allocate(1, trace_max_streams / 2);
  (*r)->flush();
  const auto read = read_trace(content(path));
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->events.size(), blocks.size());
  for (std::uint32_t i = 0; i < trace_max_streams; ++i) ASSERT_EQ(read->events[i].stream, i);
  EXPECT_EQ(read->events[trace_max_streams].stream, 2u);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(read->events[trace_max_streams + i].stream, trace_max_streams - 1);
  }
  fs::remove_all(folder);
}

// A limit on the size of files stands for a full disk.
TEST(recorder, a_file_that_cannot_be_written_any_further_ends_the_recording_only) {
  const fs::path folder = fresh_folder();
  const fs::path path = folder / "full";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const std::uint64_t before = background_error_count();
    const rlimit least{1024, 1024};
    ::setrlimit(RLIMIT_FSIZE, &least);
    const auto r = trace_recorder::open(path.string());
    if (!r) ::_exit(7);
    for (std::uintptr_t i = 1; i <= 1000; ++i) {
      (*r)->allocated(nullptr, reinterpret_cast<const void *>(i), 100, 0, {});
    }
    (*r)->flush();
    (*r)->freed(reinterpret_cast<const void *>(1));
    (*r)->owner_destroyed(nullptr);
    (*r)->flush();
    ::_exit(static_cast<int>(background_error_count() - before));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << "one error is reported";
  EXPECT_EQ(fs::file_size(path), 1024u);
  fs::remove_all(folder);
}

// The descriptor of the open file `path`.
int descriptor_of(const fs::path &path) {
  for (const auto &entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry, gone) == path) return std::stoi(entry.path().filename());
  }
  return -1;
}

// A full pipe stands for a file: a signal then ends write() after a part.
TEST(recorder, a_write_that_is_interrupted_goes_on_where_it_stopped) {
  const fs::path folder = fresh_folder();
  const fs::path path = fs::canonical(folder) / "t.trace";
  const auto r = trace_recorder::open(path.string());
  ASSERT_TRUE(r);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const int capacity = ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  ASSERT_GE(capacity, 4096);
  const int fd = descriptor_of(path);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::dup2(ends[1], fd), fd);
  ::close(ends[1]);
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &ignore, &before), 0);

  constexpr std::uintptr_t blocks = 1000;  // about 13 bytes each
  for (std::uintptr_t i = 1; i <= blocks; ++i) {
    (*r)->allocated(nullptr, reinterpret_cast<const void *>(i), 100, 0, {});
  }
  std::atomic<bool> flushed{false};
  std::thread writer([&] {
    (*r)->flush();
    flushed = true;
  });
  std::string text;
  int interrupted = 0;
  while (!flushed || text.find("," + std::to_string(blocks - 1) + ",") == std::string::npos) {
    int waiting = 0;
    ASSERT_EQ(::ioctl(ends[0], FIONREAD, &waiting), 0);
    if (waiting == capacity && !flushed) {
      ++interrupted;
      ::pthread_kill(writer.native_handle(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    char part[512];
    const ssize_t n = waiting == 0 ? 0 : ::read(ends[0], part, sizeof part);
    text.append(part, static_cast<std::size_t>(n));
  }
  writer.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  ::close(ends[0]);
  EXPECT_GT(interrupted, 1);
  const auto read = read_trace("# stillmap-trace v1\n" + text);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.blocks, blocks);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace stillmap
