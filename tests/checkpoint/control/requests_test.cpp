// Requests: status, suspend, resume, snapshot, handoff; and refusals, which change nothing.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/reader.h"
#include "tests/checkpoint/control/task.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/support/gpu_test.h"

namespace stillmap::control::testing {
namespace {

using checkpoint::backing_store;
using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;
using words = std::vector<std::string>;
namespace hostcuda_control = stillmap::testing::hostcuda_control;

class requests : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (handoff::testing::part() == "receiver") receiver();
    make_memory();
  }

  // Another process, which takes what is given to it and looks at it.
  [[noreturn]] void receiver() {
    using handoff::testing::say_and_end;
    auto at = handoff::listener::create(handoff::testing::meeting_place());
    if (!at) say_and_end(at.error().message());
    auto from = at->accept(std::chrono::milliseconds(30'000));
    if (!from) say_and_end(from.error().message());
    auto taken = handoff::receive(dev(), *from);
    if (!taken) say_and_end(taken.error().message());
    const bool whole = holds(dev(), device_address(weights_at), 4 * page(), 1);
    const bool alone = taken->tagged("cache").empty();
    say_and_end(whole && alone ? "has the weights" : "has something else");
  }
};

tag_status tag_of(const process_status &s, const char *name) {
  for (const tag_status &t : s.tags) {
    if (t.tag == name) return t;
  }
  ADD_FAILURE() << "no tag " << name;
  return {};
}

TEST_F(requests, status_tells_what_there_is) {
  start();
  const auto s = ask().status();
  ASSERT_DONE(s);
  EXPECT_EQ(s->pid, ::getpid());
  EXPECT_EQ(s->device, dev().name());
  EXPECT_EQ(s->uuid, dev().uuid());
  EXPECT_EQ(s->page_bytes, page());
  EXPECT_EQ(s->memory_total, dev().total_memory().bytes());
  EXPECT_EQ(s->memory_free, dev().memory()->free.bytes());
  EXPECT_EQ(s->tags.size(), 2u);
  EXPECT_EQ(s->omitted_tags, 0u);
  EXPECT_EQ(s->job.request, request_kind::none);
  const tag_status weights = tag_of(*s, "weights");
  EXPECT_EQ(weights.blocks, 1u);
  EXPECT_EQ(weights.reserved_bytes, 8 * page());
  EXPECT_EQ(weights.mapped_bytes, 4 * page());
  EXPECT_EQ(weights.suspended_bytes, 0u);
  EXPECT_FALSE(weights.store);
}

TEST_F(requests, a_tag_is_suspended_and_resumed_wherever_it_is_kept) {
  start(written_down());
  for (const backing_store where :
       {backing_store::pinned_host, backing_store::file, backing_store::discard}) {
    const std::uint64_t free = dev().memory()->free.bytes();
    const auto away = ask().suspend({"weights", where, file("")});
    ASSERT_DONE(away);
    EXPECT_EQ(away->tag, "weights");
    EXPECT_EQ(away->store, where);
    EXPECT_EQ(away->places, 4u);
    EXPECT_EQ(away->bytes, 4 * page());
    EXPECT_EQ(dev().memory()->free.bytes(), free + 4 * page());
    const auto s = ask().status();
    ASSERT_DONE(s);
    EXPECT_EQ(tag_of(*s, "weights").suspended_bytes, 4 * page());
    EXPECT_EQ(tag_of(*s, "weights").mapped_bytes, 0u);
    EXPECT_EQ(tag_of(*s, "weights").store, where);
    EXPECT_EQ(tag_of(*s, "cache").suspended_bytes, 0u);
    const auto back = ask().resume("weights");
    ASSERT_DONE(back);
    EXPECT_EQ(back->bytes, 4 * page());
    EXPECT_EQ(dev().memory()->free.bytes(), free);
    if (where == backing_store::discard)
      put(dev(), device_address(weights_at), pattern(4 * page(), 1));
    EXPECT_TRUE(memory_is_whole());
    EXPECT_FALSE(tag_of(*ask().status(), "weights").store);
  }
  EXPECT_EQ(seen(), (words{"stop weights", "go weights", "stop weights", "go weights",
                           "stop weights", "go weights"}));
}

// The application resumes the tag by itself in between, which the server does not see.
TEST_F(requests, status_tells_where_a_tag_was_kept_last) {
  auto made = checkpoint::suspender::create(dev());
  ASSERT_DONE(made);
  server_options options;
  options.suspender = std::move(*made);
  start(options);
  ASSERT_DONE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  ASSERT_DONE(options.suspender->resume("weights"));
  ASSERT_DONE(ask().suspend({"weights", backing_store::file, file("")}));
  const auto s = ask().status();
  ASSERT_DONE(s);
  EXPECT_EQ(tag_of(*s, "weights").store, backing_store::file);
  ASSERT_DONE(ask().resume("weights"));
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(requests, all_tags_are_suspended_and_resumed_or_none) {
  start(written_down());
  const std::uint64_t free = dev().memory()->free.bytes();
  const auto away = ask().suspend({"", backing_store::pinned_host, "", true});
  ASSERT_DONE(away);
  EXPECT_EQ(away->tag, "");
  EXPECT_EQ(away->places, 6u);
  EXPECT_EQ(away->bytes, 6 * page());
  EXPECT_EQ(dev().memory()->free.bytes(), free + 6 * page());
  const auto nothing = ask().suspend({"", backing_store::pinned_host, "", true});
  ASSERT_FALSE(nothing);
  EXPECT_TRUE(nothing.error().is(errc::invalid_argument)) << nothing.error().message();
  const auto back = ask().resume_all();
  ASSERT_DONE(back);
  EXPECT_EQ(back->bytes, 6 * page());
  EXPECT_TRUE(memory_is_whole());
  ASSERT_FALSE(ask().resume_all());
  EXPECT_EQ(seen(), (words{"stop cache weights", "go cache weights"}));
  // What is suspended already stays so, and the rest follows.
  ASSERT_DONE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  ASSERT_DONE(ask().suspend({"", backing_store::pinned_host, "", true}));
  ASSERT_DONE(ask().resume_all());
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(requests, all_tags_stay_where_one_cannot_be_suspended) {
  STILLMAP_NEEDS_HOSTCUDA();
  start(written_down());
  // "cache" is suspended first, and is brought back when "weights" fails.
  hostcuda_control::fail("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN);
  const auto no = ask().suspend({"", backing_store::pinned_host, "", true});
  EXPECT_EQ(hostcuda_control::faults_fired(), 1u);
  ASSERT_FALSE(no);
  EXPECT_EQ(no.error().code, std::error_code(CUDA_ERROR_UNKNOWN, cuda_category()));
  EXPECT_EQ(seen(), (words{"stop cache weights", "go cache weights"}));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_FALSE(tag_of(*ask().status(), "cache").store);
}

TEST_F(requests, a_resume_of_all_brings_back_what_there_is_room_for) {
  STILLMAP_NEEDS_HOSTCUDA();
  start(written_down());
  ASSERT_DONE(ask().suspend({"", backing_store::pinned_host, "", true}));
  leave_free(3);
  const auto no = ask().resume_all();
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::out_of_memory)) << no.error().message();
  EXPECT_EQ(seen(), (words{"stop cache weights", "go cache"}));
  EXPECT_EQ(tag_of(*ask().status(), "cache").suspended_bytes, 0u);
  EXPECT_EQ(tag_of(*ask().status(), "weights").suspended_bytes, 4 * page());
  hostcuda_control::occupy(0, 0);
  ASSERT_DONE(ask().resume_all());
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(requests, a_server_that_only_holds_its_address_says_why) {
  server_options o = written_down();
  o.not_ready = "the memory has not arrived";
  start(std::move(o));
  const auto s = ask().status();
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy));
  EXPECT_NE(s.error().message().find("the memory has not arrived"), std::string::npos)
      << s.error().message();
}

TEST_F(requests, a_snapshot_is_written_and_the_next_one_builds_on_it) {
  start(written_down());
  snapshot_request r;
  r.tags = {"weights", "cache"};
  r.path = file("a.smi");
  std::vector<snapshot_progress> told;
  const auto first = ask().snapshot(r, [&](const snapshot_progress &p) {
    told.push_back(p);
    return true;
  });
  ASSERT_DONE(first);
  EXPECT_EQ(first->contents_bytes, 6 * page());
  EXPECT_FALSE(told.empty());
  for (const snapshot_progress &p : told) EXPECT_LE(p.bytes, p.total_bytes);
  put(dev(), device_address(cache_at), pattern(page(), 9));
  r.parent = r.path;
  r.path = file("b.smi");
  r.compress = image::codec::zstd;
  const auto second = ask().snapshot(r);
  ASSERT_DONE(second);
  EXPECT_EQ(second->parent_chunks, first->chunks - (page() + (2 << 20) - 1) / (2 << 20));
  EXPECT_NE(second->image, first->image);
  const auto image = image::reader::open(r.path);
  ASSERT_TRUE(image) << image.error().message();
  EXPECT_EQ(image->superblock().image, second->image);
  EXPECT_EQ(image->chain(), 2u);
  EXPECT_TRUE(image->verify());
  EXPECT_EQ(seen(), (words{"stop weights cache", "go weights cache", "stop weights cache",
                           "go weights cache"}));
  // Not without being told to.
  const auto again = ask().snapshot(r);
  ASSERT_FALSE(again);
  EXPECT_TRUE(again.error().code == std::errc::file_exists) << again.error().message();
  EXPECT_NE(again.error().message().find("b.smi"), std::string::npos) << again.error().message();
  r.replace = true;
  EXPECT_TRUE(ask().snapshot(r));
  EXPECT_EQ(files(), 2u);
}

TEST_F(requests, snapshots_are_encrypted_and_signed_with_the_keys_of_files) {
  start(written_down());
  const auto write_key = [&](const char *name, const auto &key, mode_t mode) {
    std::ofstream(file(name)) << key.text() << '\n';
    EXPECT_EQ(::chmod(file(name).c_str(), mode), 0);
    return file(name);
  };
  const auto key = image::make_secret_key().value();
  const auto signing = image::make_signing_key().value();
  snapshot_request r;
  r.tags = {"weights", "cache"};
  r.path = file("a.smi");
  r.key = write_key("key", key, 0600);
  r.sign_with = write_key("signing", signing, 0600);
  ASSERT_DONE(ask().snapshot(r));
  r.parent = r.path;
  r.path = file("b.smi");
  const auto child = ask().snapshot(r);
  ASSERT_DONE(child);
  EXPECT_NE(child->parent_chunks, 0u);
  image::open_options open;
  open.key = key;
  open.signed_by = image::verifying_key_of(signing).value();
  const auto image = image::reader::open(r.path, open);
  ASSERT_TRUE(image) << image.error().message();
  EXPECT_TRUE(image->verify());
  // Nothing stops for a key that cannot be used.
  const words before = seen();
  r.path = file("c.smi");
  r.parent.clear();
  for (const std::string &bad : {file("none"), write_key("open", key, 0644)}) {
    r.key = bad;
    const auto refused = ask().snapshot(r);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find(bad), std::string::npos) << refused.error().message();
  }
  EXPECT_EQ(seen(), before);
  EXPECT_FALSE(std::filesystem::exists(r.path));
}

TEST_F(requests, memory_is_given_to_a_process_that_waits_for_it) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  start(written_down());
  handoff_request r;
  r.tags = {"weights"};
  r.to = new_place();
  r.timeout = std::chrono::milliseconds(30'000);
  handoff::testing::other_process receiver("receiver", r.to);
  const auto given = ask().handoff(r);
  ASSERT_DONE(given);
  EXPECT_EQ(given->blocks, 1u);
  EXPECT_EQ(given->pages, 4u);
  EXPECT_EQ(given->bytes, 4 * page());
  EXPECT_TRUE(given->unmapped);
  EXPECT_EQ(receiver.verdict(), "has the weights");
  EXPECT_EQ(seen(), (words{"stop weights", "given weights"}));
  EXPECT_EQ(dev().space().stats().mapped_bytes, 2 * page());
  // It is nobody's here any more.
  const auto gone = ask().suspend({"weights", backing_store::pinned_host, ""});
  ASSERT_FALSE(gone);
  EXPECT_TRUE(gone.error().is(errc::busy)) << gone.error().message();
  EXPECT_EQ(gone.error().value, weights_at);
}

TEST_F(requests, refusals_come_whole_and_before_the_task_is_stopped) {
  start(written_down());
  const auto unknown = ask().suspend({"nobody's", backing_store::pinned_host, ""});
  ASSERT_FALSE(unknown);
  EXPECT_TRUE(unknown.error().is(errc::invalid_argument));
  EXPECT_NE(
      unknown.error().message().find("nobody's: control::suspend: no memory has this tag: invalid"),
      std::string::npos);

  snapshot_request save;
  save.tags = {"weights", "nobody's"};
  save.path = file("a.smi");
  const auto second = ask().snapshot(save);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().detail().cause.find("nobody's: "), 0u) << second.error().message();
  save.tags = {"weights"};
  save.parent = file("missing.smi");
  const auto orphan = ask().snapshot(save);
  ASSERT_FALSE(orphan);
  EXPECT_TRUE(orphan.error().code == std::errc::no_such_file_or_directory)
      << orphan.error().message();
  EXPECT_NE(orphan.error().message().find("missing.smi"), std::string::npos)
      << orphan.error().message();

  const auto awake = ask().resume("weights");
  ASSERT_FALSE(awake);
  EXPECT_TRUE(awake.error().is(errc::invalid_argument));
  EXPECT_NE(awake.error().detail().cause.find("control::resume"), std::string::npos)
      << awake.error().message();

  handoff_request nobody;
  nobody.tags = {"weights"};
  nobody.to = new_place();
  nobody.timeout = std::chrono::milliseconds(0);
  const auto alone = ask().handoff(nobody);
  ASSERT_FALSE(alone);
  EXPECT_TRUE(alone.error().code == std::errc::connection_refused) << alone.error().message();
  EXPECT_EQ(seen(), words{});

  // What is away cannot be saved, and its task is not started again for having asked.
  ASSERT_TRUE(ask().suspend({"cache", backing_store::pinned_host, ""}));
  save.tags = {"weights", "cache"};
  save.parent.clear();
  const auto away = ask().snapshot(save);
  ASSERT_FALSE(away);
  EXPECT_TRUE(away.error().is(errc::busy)) << away.error().message();
  EXPECT_EQ(away.error().value, cache_at);
  EXPECT_FALSE(ask().suspend({"cache", backing_store::pinned_host, ""}));
  EXPECT_EQ(seen(), words{"stop cache"});
  ASSERT_TRUE(ask().resume("cache"));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_EQ(files(), 0u);
}

TEST_F(requests, a_task_that_does_not_stop_keeps_its_memory) {
  server_options o = written_down();
  o.task.quiesce = [](auto, auto) {
    return status(tl::unexpected(
        error{make_error_code(errc::busy), "my_task::stop", "a step cannot be interrupted", 7, 9}));
  };
  start(std::move(o));
  snapshot_request save;
  save.tags = {"weights"};
  save.path = file("a.smi");
  const auto no = ask().snapshot(save);
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::busy));
  EXPECT_EQ(no.error().detail().cause.find("my_task::stop: a step cannot be interrupted"), 0u)
      << no.error().message();
  EXPECT_EQ(no.error().value, 7u);
  EXPECT_EQ(no.error().limit, 9u);
  EXPECT_FALSE(ask().suspend({"weights", backing_store::discard, ""}));
  EXPECT_EQ(seen(), words{});
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(requests, what_fails_in_the_middle_is_undone_and_the_task_goes_on) {
  STILLMAP_NEEDS_HOSTCUDA();
  start(written_down());
  snapshot_request save;
  save.tags = {"weights"};
  save.path = file("a.smi");
  hostcuda_control::fail("cuMemcpyDtoHAsync", 2, CUDA_ERROR_UNKNOWN);
  const auto no = ask().snapshot(save);
  EXPECT_EQ(hostcuda_control::faults_fired(), 1u);
  ASSERT_FALSE(no);
  EXPECT_EQ(no.error().code, std::error_code(CUDA_ERROR_UNKNOWN, cuda_category()));
  EXPECT_NE(no.error().message().find("CUDA_ERROR_UNKNOWN"), std::string::npos)
      << no.error().message();
  EXPECT_EQ(files(), 0u);
  hostcuda_control::fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  EXPECT_EQ(hostcuda_control::faults_fired(), 1u);
  EXPECT_EQ(seen(), (words{"stop weights", "go weights", "stop weights", "go weights"}));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_TRUE(ask().snapshot(save));
}

TEST_F(requests, a_resume_without_memory_can_be_asked_for_again) {
  STILLMAP_NEEDS_HOSTCUDA();
  start(written_down());
  ASSERT_TRUE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  leave_free(1);
  const auto no = ask().resume("weights");
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::out_of_memory)) << no.error().message();
  hostcuda_control::occupy(0, 0);
  ASSERT_TRUE(ask().resume("weights"));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_EQ(seen(), (words{"stop weights", "go weights"}));
}

TEST_F(requests, what_suspends_can_be_the_applications_own) {
  auto made = checkpoint::suspender::create(dev());
  ASSERT_TRUE(made);
  const std::shared_ptr<checkpoint::suspender> own = std::move(*made);
  server_options o = written_down();
  o.suspender = own;
  start(std::move(o));
  ASSERT_TRUE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  stop();  // and what is away stays away
  EXPECT_EQ(own->suspended().size(), 1u);
  ASSERT_TRUE(own->resume("weights"));
  EXPECT_TRUE(memory_is_whole());
}

}  // namespace
}  // namespace stillmap::control::testing
