// The state of a group: what follows what, what is final, and what a decider tells whom.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/migration/internal/record_lock.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/vmm/base/try.h"
#include "tests/checkpoint/image/disk_check.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using namespace std::chrono_literals;
using namespace stillmap::testing::sample;
using enum group_state;

constexpr group_state all_states[] = {open, stopping, committed, aborted};

group_id new_group() {
  return make_group_id().value();
}

// A new one whose state is `open`.
group_id begun_in(const std::string &folder) {
  const group_id g = new_group();
  const auto now = advance_group(folder, g, open);
  if (!now || *now != open) throw std::runtime_error("a group does not begin");
  return g;
}

TEST(migration_group, a_state_advances_and_never_goes_back) {
  const test_site m;
  const std::string folder = m.records("destination");
  for (const group_state now : all_states) {
    for (const group_state to : all_states) {
      SCOPED_TRACE(std::string(name_of(now)) + ", " + name_of(to));
      const group_id g = begun_in(folder);
      if (now == committed) {
        ASSERT_TRUE(advance_group(folder, g, stopping));
      }
      const auto before = advance_group(folder, g, now);
      ASSERT_TRUE(before) << before.error().message();
      ASSERT_EQ(*before, now);
      const bool is_final = now == committed || now == aborted;
      const bool follows = !is_final && (to == committed ? now == stopping : to > now);
      const auto after = advance_group(folder, g, to);
      ASSERT_TRUE(after) << after.error().message();
      EXPECT_EQ(*after, follows ? to : now);
      EXPECT_EQ(*advance_group(folder, g, {}), *after) << "another state is read";
    }
  }
}

TEST(migration_group, who_decides_first_decides_for_all) {
  const test_site m;
  const std::string folder = m.records("destination");
  for (int round = 0; round < 20; ++round) {
    const group_id g = begun_in(folder);
    ASSERT_TRUE(advance_group(folder, g, stopping));
    std::mutex mutex;
    std::set<group_state> told;
    {
      std::vector<std::jthread> all;
      for (int i = 0; i < 4; ++i) {
        all.emplace_back([&, i] {
          for (;;) {
            const auto now = advance_group(folder, g, i % 2 == 0 ? committed : aborted);
            if (!now && now.error().is(errc::busy)) continue;  // another thread has it
            const std::lock_guard lock(mutex);
            told.insert(now ? *now : open);
            return;
          }
        });
      }
    }
    ASSERT_EQ(told.size(), 1u);
    EXPECT_TRUE(told.contains(committed) || told.contains(aborted));
  }
}

TEST(migration_group, a_damaged_state_decides_nothing) {
  const test_site m;
  const std::string folder = m.records("destination");
  const group_id g = begun_in(folder), other = begun_in(folder);
  ASSERT_TRUE(advance_group(folder, g, aborted));
  ASSERT_TRUE(advance_group(folder, other, stopping));
  const std::string path = folder + '/' + g.text() + ".group";
  std::string text;
  {
    std::ifstream in(path);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto refused = [&](const std::string &contents) {
    std::ofstream(path) << contents;
    for (const group_state to : all_states) {
      const auto now = advance_group(folder, g, to);
      if (now || !now.error().is(errc::corrupt)) return false;
      if (now.error().detail().subject != path) return false;
    }
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {}) == contents;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_TRUE(refused(changed)) << i;
    EXPECT_TRUE(refused(text.substr(0, i))) << i;
  }
  EXPECT_TRUE(refused(text + text));
  EXPECT_TRUE(refused(text + std::string(10'000, 'x')));
  // That of another group.
  std::filesystem::copy_file(folder + '/' + other.text() + ".group", path,
                             std::filesystem::copy_options::overwrite_existing);
  const auto now = advance_group(folder, g, open);
  ASSERT_FALSE(now);
  EXPECT_TRUE(now.error().is(errc::corrupt));
}

// Regression: a decider with another directory of records took a group that had committed for one that was open.
TEST(migration_group, who_does_not_know_a_group_decides_nothing) {
  const test_site m;
  const std::string folder = m.records("destination");
  const group_id g = new_group();
  for (const std::optional<group_state> to : {std::optional<group_state>(), std::optional(stopping),
                                              std::optional(committed), std::optional(aborted)}) {
    const auto now = advance_group(folder, g, to);
    ASSERT_FALSE(now);
    EXPECT_TRUE(now.error().is(errc::busy)) << now.error().message();
    EXPECT_NE(now.error().message().find("same directory of records"), std::string::npos)
        << now.error().message();
  }
  EXPECT_FALSE(std::filesystem::exists(folder + '/' + g.text() + ".group"));
}

TEST(migration_group, another_process_is_waited_for) {
  const test_site m;
  const group_id g = new_group();
  const std::string folder = m.records("destination");
  const auto lock = record_lock::take(folder + '/' + g.text() + ".group.lock");
  ASSERT_TRUE(lock);
  const auto now = advance_group(folder, g, aborted);
  ASSERT_FALSE(now);
  EXPECT_TRUE(now.error().is(errc::busy)) << now.error().message();
  EXPECT_FALSE(advance_group(folder + "/none", g, aborted));
}

// What was told once is told again, whatever the disk has lost since.
TEST(migration_group, is_old_or_new_on_a_disk_that_loses_what_was_not_synced) {
  const test_site m;
  const std::string directory = m.records("destination");  // of the lock; the state is on the disk
  const group_id g{{std::byte{3}}};
  for (const group_state last : {committed, aborted}) {
    image::check_on_disk({name_of(last),
                          [&](checkpoint::simulated_disk &disk) {
                            disk.make_directories(directory);
                            ASSERT_TRUE(advance_group(directory, g, open, disk));
                            ASSERT_TRUE(advance_group(directory, g, stopping, disk));
                          },
                          [&](checkpoint::simulated_disk &disk) {
                            const auto now = advance_group(directory, g, last, disk);
                            return now && *now == last;
                          },
                          [&](checkpoint::simulated_disk &disk) {
                            const auto now = advance_group(directory, g, {}, disk);
                            if (!now) return image::disk_state::mixture;
                            return *now == last       ? image::disk_state::new_one
                                   : *now == stopping ? image::disk_state::old_one
                                                      : image::disk_state::mixture;
                          }});
  }
}

TEST(migration_group, without_host_memory_nothing_is_decided) {
  const test_site m;
  const std::string folder = m.records("destination");
  stillmap::testing::allocation_sweep all;
  all +=
      stillmap::testing::fail_each_allocation([&](stillmap::testing::failing_allocation &failing) {
        const group_id g = begun_in(folder);
        ASSERT_TRUE(advance_group(folder, g, stopping));
        const auto done = failing([&] { return advance_group(folder, g, committed); });
        const auto is = advance_group(folder, g, {});
        ASSERT_TRUE(is) << is.error().message();
        EXPECT_EQ(*is, done ? committed : stopping);
      });
  EXPECT_GT(all.points, stillmap::testing::fewest_points(10));
  all.note("migration::advance_group");
}

// ---- At a decider, which is a receiver.

class deciding : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (!part().empty()) serve_as_third(test_site(meeting_place()));
    site_.emplace();
    auto made = receiver::create(dev(), at_destination(*site_), destination_options(*site_));
    ASSERT_TRUE(made) << made.error().message();
    decider_.emplace(std::move(*made));
    to_ = to_destination(*site_);
  }
  void TearDown() override {
    decider_.reset();
    buffer_test::TearDown();
  }
  // Another process.
  [[noreturn]] void serve_as_third(const test_site &m) {
    auto at = receiver::create(dev(), acceptor_at(m, "third"), destination_options(m, "third"));
    if (!at) say_and_end(at.error().message());
    (void)at->receive(60s);
    say_and_end("it has come");
  }
  group_id begun() const { return begun_in(site_->records("destination")); }
  result<group_state> advance(const group_id &g, std::optional<group_state> to,
                              group_state seen = open, std::chrono::milliseconds wait = 0ms) const {
    return advance_group(*to_, g, to, {}, 30s, seen, wait);
  }

  std::optional<test_site> site_;
  std::optional<receiver> decider_;
  std::unique_ptr<transport> to_;
};

TEST_F(deciding, a_reply_is_held_back_until_there_is_news) {
  const group_id g = begun();
  EXPECT_EQ(*advance(g, {}), open);
  EXPECT_EQ(*advance(g, {}, open, 1ms), open) << "for so long at most";
  auto waits = std::async(std::launch::async, [&] {
    for (;;) {
      const auto now = advance(g, {}, open, 1000ms);
      if (!now || *now != open) return now;
    }
  });
  EXPECT_EQ(*advance(g, stopping), stopping);
  const auto told = waits.get();
  ASSERT_TRUE(told) << told.error().message();
  EXPECT_EQ(*told, stopping);
  EXPECT_EQ(*advance(g, committed), committed);
  EXPECT_EQ(*advance(g, aborted), committed);
}

TEST_F(deciding, only_the_machine_with_the_certificate_is_believed) {
  const group_id g = begun();
  std::string certificate;
  ASSERT_TRUE(advance_group(*to_, g, aborted, {}, 30s, open, {}, &certificate));
  EXPECT_FALSE(certificate.empty());
  EXPECT_EQ(*advance_group(*to_, g, {}, certificate, 30s), aborted);
  const auto now = advance_group(*to_, g, {}, std::string(64, '0'), 30s);
  ASSERT_FALSE(now);
  EXPECT_TRUE(now.error().is(errc::not_supported)) << now.error().message();
}

TEST_F(deciding, who_is_not_accepted_decides_nothing) {
  receive_options closed = destination_options(*site_);
  closed.allow = [](const peer_identity &) { return false; };
  decider_.reset();
  auto made = receiver::create(dev(), at_destination(*site_), closed);
  ASSERT_TRUE(made) << made.error().message();
  decider_.emplace(std::move(*made));
  const group_id g = begun();
  EXPECT_FALSE(advance(g, aborted));
  EXPECT_EQ(*advance_group(site_->records("destination"), g, {}), open);
}

TEST_F(deciding, what_is_no_query_is_refused) {
  const auto ask = [&](std::vector<std::byte> body) -> status {
    const auto c = to_->connect(30s);
    if (!c) return tl::unexpected(c.error());
    STILLMAP_RETURN_IF_ERROR((*c)->handshake(30s));
    STILLMAP_RETURN_IF_ERROR(send(**c, kind::group, body, 30s));
    const auto reply = receive(**c, kind::group_result, 0, 30s);
    return reply ? status() : tl::unexpected(reply.error());
  };
  const group_id g = begun();
  const auto good = encode(group_query{g, {}, open, 1});
  EXPECT_TRUE(ask(good));
  EXPECT_FALSE(ask({}));
  EXPECT_FALSE(ask({good.begin(), good.end() - 1}));
  EXPECT_FALSE(ask(encode(group_query{{}, open, open, 0}))) << "no group";
  EXPECT_FALSE(ask(encode(group_query{g, open, open, max_group_wait_ms + 1})));
  auto beyond = encode(group_query{g, aborted, open, 0});
  for (const std::size_t field : {16u, 20u}) {
    auto changed = beyond;
    changed[field] = std::byte{4};
    EXPECT_FALSE(ask(changed)) << field;
  }
  EXPECT_EQ(*advance(g, {}), open) << "a refused query has had an effect";
}

// ---- Tasks of a group.

TEST_F(deciding, a_task_joins_an_open_group_only) {
  task t(dev());
  const auto send_with = [&](const group_id &g, transport *decider) {
    send_options options = source_options(*site_);
    options.group = {g, decider, site_->address(), 30s};
    return sender(dev(), both, options).send(*to_);
  };
  for (const group_state late : {stopping, committed, aborted}) {
    const group_id g = begun();
    if (late == committed) {
      ASSERT_TRUE(advance(g, stopping));
    }
    ASSERT_EQ(*advance(g, late), late);
    const sent_memory sent = send_with(g, to_.get());
    EXPECT_EQ(sent.owner, owner::source);
    ASSERT_TRUE(sent.failure);
    EXPECT_TRUE(sent.failure->is(late == aborted ? errc::operation_canceled : errc::busy))
        << sent.failure->message();
    EXPECT_NE(sent.failure->message().find(name_of(late)), std::string::npos)
        << sent.failure->message();
    EXPECT_EQ(*advance(g, {}), late) << "who has not joined has no say";
  }
  const sent_memory unknown = send_with(new_group(), to_.get());
  ASSERT_TRUE(unknown.failure);
  EXPECT_NE(unknown.failure->message().find("do not list the group"), std::string::npos)
      << unknown.failure->message();
  const sent_memory alone = send_with(begun(), nullptr);
  ASSERT_TRUE(alone.failure);
  EXPECT_TRUE(alone.failure->is(errc::invalid_argument));
  EXPECT_EQ(task::wrong(dev()), "");
}

// Its memory has ended with its process: a task that was restored from an image has another id.
TEST_F(deciding, a_task_that_its_group_left_behind_is_known_by_its_record) {
  task t(dev());
  send_options options = source_options(*site_);
  record left;
  left.task = options.task;
  left.epoch = 1005;
  left.group = {new_group(), std::string(64, 'a'), "host:4711"};
  {
    auto file = record_file::open(options.records, options.task);
    ASSERT_TRUE(file && file->write(left));
  }
  const auto read = read_record(options.records, options.task);
  ASSERT_TRUE(read && *read);
  EXPECT_EQ((*read)->group.id, left.group.id);
  EXPECT_EQ((*read)->group.certificate, left.group.certificate);
  EXPECT_EQ((*read)->group.address, left.group.address);
  options.quiesce = []() -> status {
    ADD_FAILURE() << "it was stopped";
    return {};
  };
  for (const bool resolves : {false, true}) {
    sender s(dev(), both, options);
    const sent_memory sent = resolves ? s.resolve(*to_) : s.send(*to_);
    EXPECT_EQ(sent.owner, owner::source);
    ASSERT_TRUE(sent.failure);
    EXPECT_TRUE(sent.failure->is(errc::not_supported)) << sent.failure->message();
  }
  EXPECT_EQ(task::wrong(dev()), "");
}

// It is copied meanwhile, and is not stopped.
TEST_F(deciding, a_task_that_waits_for_others_can_be_cancelled) {
  task t(dev());
  const group_id g = begun();
  // Its destination cannot be this process.
  const other_process there("third", site_->folder());
  send_options options = source_options(*site_);
  options.group = {g, to_.get(), site_->address(), 30s};
  std::stop_source cancel;
  options.cancel = cancel.get_token();
  options.quiesce = []() -> status {
    ADD_FAILURE() << "it was stopped";
    return {};
  };
  options.on_progress = [&](const progress &p) {
    if (p.step == step::ready) cancel.request_stop();
  };
  const sent_memory sent =
      sender(dev(), both, options).send(*transport_between(*site_, "source", "third"));
  EXPECT_EQ(sent.owner, owner::source);
  ASSERT_TRUE(sent.failure);
  EXPECT_TRUE(sent.failure->is(errc::operation_canceled)) << sent.failure->message();
  EXPECT_EQ(*advance(g, {}), aborted) << "the others need not wait for it";
}

}  // namespace
}  // namespace stillmap::migration::testing
