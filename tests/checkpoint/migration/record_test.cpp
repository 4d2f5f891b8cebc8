// The lock of an ownership record, and forked children; a record under another locale.
#include "stillmap/checkpoint/migration/record.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <locale>

namespace stillmap::migration {
namespace {

class migration_record_lock : public ::testing::Test {
 protected:
  migration_record_lock() { std::filesystem::create_directories(directory_); }
  ~migration_record_lock() override { std::filesystem::remove_all(directory_); }

  record of_task(std::uint64_t epoch) const {
    record r;
    r.task = task_;
    r.epoch = epoch;
    return r;
  }
  const std::string directory_ =
      ::testing::TempDir() + "stillmap-record-lock-" + std::to_string(getpid());
  const task_id task_ = *parse_task_id("00112233445566778899aabbccddeeff");
};

// A process that dies gives up its record, though a child of it lives on.
TEST_F(migration_record_lock, a_forked_child_does_not_keep_it) {
  int to_parent[2];
  ASSERT_EQ(pipe(to_parent), 0);
  const pid_t middle = fork();
  if (middle == 0) {
    const auto file = record_file::open(directory_, task_);
    if (!file) _exit(1);
    const pid_t inner = fork();
    if (inner == 0) {
      const pid_t own = getpid();
      (void)!write(to_parent[1], &own, sizeof own);
      for (;;) pause();
    }
    _exit(0);
  }
  pid_t inner = 0;
  ASSERT_EQ(read(to_parent[0], &inner, sizeof inner), static_cast<ssize_t>(sizeof inner));
  int how = 0;
  ASSERT_EQ(waitpid(middle, &how, 0), middle);
  EXPECT_EQ(how, 0);
  const auto mine = record_file::open(directory_, task_);
  kill(inner, SIGKILL);
  EXPECT_TRUE(mine) << mine.error().message();
  for (const int fd : to_parent) close(fd);
}

// Nor does the child change the record that its parent holds, or take over one that the parent keeps.
TEST_F(migration_record_lock, a_forked_child_cannot_write_it) {
  auto file = record_file::open(directory_, task_);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_TRUE(file->write(of_task(5)));
  const auto in_child = [](auto act) {
    const pid_t child = fork();
    if (child == 0) _exit(act() ? 0 : 1);
    int how = 0;
    EXPECT_EQ(waitpid(child, &how, 0), child);
    return how;
  };
  EXPECT_EQ(in_child([&] {
              const status s = file->write(of_task(6));
              const auto again = record_file::open(directory_, task_);
              return !s && s.error().is(errc::not_supported) && !again &&
                     again.error().is(errc::busy);
            }),
            0);
  record_file::keep_locked(std::move(*file), of_task(7));
  EXPECT_EQ(in_child([&] {
              const auto again = record_file::open(directory_, task_);
              return !again && again.error().is(errc::busy);
            }),
            0);
  const auto found = read_record(directory_, task_);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->epoch, 5u);
  EXPECT_TRUE(record_file::open(directory_, task_)) << "the parent still holds it";
}

// Regression: both wrote, and each believed what it had written.
TEST_F(migration_record_lock, that_was_deleted_is_taken_again_if_nobody_has_changed_the_record) {
  const std::string lock = directory_ + '/' + task_.text() + ".lock";
  auto file = record_file::open(directory_, task_);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_TRUE(file->write(of_task(5)));
  ASSERT_TRUE(std::filesystem::remove(lock));
  const status written = file->write(of_task(6));
  EXPECT_TRUE(written) << written.error().message();
  EXPECT_FALSE(record_file::open(directory_, task_)) << "it is locked again";

  ASSERT_TRUE(std::filesystem::remove(lock));
  {
    auto other = record_file::open(directory_, task_);
    ASSERT_TRUE(other) << other.error().message();
    const status held = file->write(of_task(7));
    ASSERT_FALSE(held);
    EXPECT_TRUE(held.error().is(errc::busy)) << held.error().message();
    ASSERT_TRUE(other->write(of_task(1007)));
  }
  const status changed = file->write(of_task(7));
  ASSERT_FALSE(changed);
  EXPECT_TRUE(changed.error().is(errc::busy)) << changed.error().message();
  EXPECT_NE(changed.error().message().find("the lock file was deleted"), std::string::npos)
      << changed.error().message();
  EXPECT_EQ(changed.error().detail().subject, lock);
  const auto found = read_record(directory_, task_);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->epoch, 1007u);
}

TEST_F(migration_record_lock, says_what_it_is) {
  const auto file = record_file::open(directory_, task_);
  ASSERT_TRUE(file) << file.error().message();
  std::ifstream in(directory_ + '/' + task_.text() + ".lock");
  std::string line;
  EXPECT_TRUE(std::getline(in, line));
  EXPECT_NE(line.find("Do not delete"), std::string::npos) << line;
}

// Regression: listing waited for ever for somebody who writes to it.
TEST_F(migration_record_lock, that_is_a_pipe_keeps_nobody_waiting) {
  {
    auto file = record_file::open(directory_, task_);
    ASSERT_TRUE(file && file->write(of_task(5)));
  }
  const std::string lock = directory_ + '/' + task_.text() + ".lock";
  ASSERT_TRUE(std::filesystem::remove(lock));
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  const auto all = list_records(directory_);
  ASSERT_TRUE(all && all->size() == 1);
  EXPECT_FALSE(all->front().locked);
  EXPECT_FALSE(record_file::open(directory_, task_));
}

using migration_record_text = migration_record_lock;

// 1234567 as 1,234,567.
struct grouped_digits final : std::numpunct<char> {
  char do_thousands_sep() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

// Regression: the program's locale changed the epoch in the text, which was then sealed: the record
// could not be read again.
TEST_F(migration_record_text, a_locale_does_not_change_the_text) {
  record r = of_task(1234567);
  r.transfers.push_back({{}, 7654321, transfer_state::committed});
  const std::string text = to_text(r);
  const std::locale before =
      std::locale::global(std::locale(std::locale::classic(), new grouped_digits));
  const std::string other = to_text(r);
  auto file = record_file::open(directory_, task_);
  const status written = file ? file->write(r) : tl::unexpected(file.error());
  const auto found = read_record(directory_, task_);
  std::locale::global(before);
  EXPECT_EQ(other, text);
  EXPECT_NE(text.find("\nepoch 1234567\n"), std::string::npos) << text;
  ASSERT_TRUE(written) << written.error().message();
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->epoch, 1234567u);
  EXPECT_EQ((*found)->transfers.at(0).epoch, 7654321u);
}

}  // namespace
}  // namespace stillmap::migration
