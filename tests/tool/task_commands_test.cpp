// stillmap task, and image restore, with a process that runs a control server.
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/checkpoint/handoff/listener.h"
#include "stillmap/checkpoint/publication/holder.h"
#include "stillmap/checkpoint/publication/publication.h"
#include "tests/support/buffer_test.h"
#include "tests/support/unique_name.h"
#include "tests/tool/task_test.h"
#include "tools/stillmap/task/each_task.h"

namespace stillmap::testing {
namespace {

using control::testing::is_whole;
using control::testing::new_place;

class task_commands : public task_test {
 protected:
  void SetUp() override {
    task_test::SetUp();
    if (!IsSkipped()) start_task();
  }
  // stillmap task handoff receive, as a process.
  void start_receiver(const std::string &where, const std::string &more = "",
                      const std::string &name = "receiver") {
    start_process(name, "task handoff receive '" + where + "' " + more);
  }
  // What the receiver printed, once memory has arrived.
  std::string taken() const { return once("receiver.out", "stillmap: ok"); }
};

TEST_F(task_commands, a_task_goes_back_to_its_image) {
  const std::string image = file("a.smi"), key = file("key");
  std::ofstream(key) << std::string(64, 'a');
  ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
  expect(run("task snapshot " + where_ + " --all -o '" + image + "' --key '" + key + "'"), 0, {});
  stillmap::testing::put(dev(), device_address(control::testing::weights_at),
                         stillmap::testing::pattern(page(), 9));
  EXPECT_FALSE(is_whole(dev()));
  expect_usage("task restore " + where_ + " '" + image + "'", "either --tag or --all");
  expect(run("task restore " + where_ + " '" + image + "' --tag weight"), 3, {"'weights'"});
  EXPECT_EQ(run("task restore " + where_ + " '" + image + "' --all").status, 2);
  EXPECT_FALSE(is_whole(dev()));
  expect(run("task restore " + where_ + " '" + image + "' --all --key '" + key + "'"), 0,
         {"stillmap: ok: ", "restored from " + image});
  EXPECT_TRUE(is_whole(dev()));
  expect(run("task restore --json " + where_ + " '" + image + "' --tag cache --key '" + key + "'"),
         0, {"\"bytes\": " + std::to_string(2 * page()), "\"pages\": 2"});
  expect(run("task suspend " + where_ + " cache"), 0, {});
  EXPECT_NE(run("task restore " + where_ + " '" + image + "' --all --key '" + key + "'").status, 0);
  expect(run("task resume " + where_ + " cache"), 0, {});
}

// What is published is counted for the whole process, and says nothing of one tag.
TEST_F(task_commands, a_tag_sleeps_beside_one_that_is_published) {
  const auto holding = publication::holder::create(new_place());
  ASSERT_DONE(holding);
  const std::string weights[] = {"weights"};
  const auto published = publication::publish(dev(), holding->address(), "model", weights);
  if (!published && published.error().is(errc::not_supported)) GTEST_SKIP();
  ASSERT_DONE(published);
  expect(run("task suspend " + where_ + " cache"), 0,
         {"stillmap: ok: cache suspended: ", " in 2 mappings"});
  expect(run("task resume " + where_ + " cache --each"), 0, {});
  EXPECT_TRUE(is_whole(dev()));
}

TEST_F(task_commands, a_task_sleeps_and_wakes) {
  expect(
      run("task status " + where_), 0,
      {"process " + std::to_string(::getpid()) + ": " + dev().name(), "weights", "cache", "live"});
  expect(
      run("task suspend " + where_ + " weights --to file --directory '" + folder_.string() + "'"),
      0, {"stillmap: ok: weights suspended: ", " in 4 mappings"});
  expect(run("task status " + where_), 0, {"suspended, file"});
  expect(run("task suspend " + where_ + " weights"), 0,
         {"stillmap: ok: weights: suspended already (file); nothing to do\n"});
  expect(run("task status --json " + where_), 0,
         {"\"state\": \"suspended\"", "\"backing_store\": \"file\"", "\"request\": null",
          "\"suspended_bytes\": " + std::to_string(4 * page())});
  expect(run("task resume " + where_ + " weights --json"), 0,
         {"\"bytes\": " + std::to_string(4 * page())});
  EXPECT_TRUE(is_whole(dev()));
  EXPECT_EQ(went_on_, 1);
  expect(run("task resume " + where_ + " weights"), 0,
         {"stillmap: ok: weights: not suspended; nothing to do\n"});
  expect(run("task resume " + where_ + " --all"), 0,
         {"stillmap: ok: all tags: not suspended; nothing to do\n"});
  expect(run("task suspend " + where_ + " --all"), 0, {"all tags suspended", " in 6 mappings"});
  expect(run("task suspend " + where_ + " --all"), 0,
         {"stillmap: ok: all tags: suspended already (pinned); nothing to do\n"});
  expect(run("task suspend " + where_ + " --all --json"), 0,
         {"\"bytes\": 0", "\"backing_store\": null"});
  expect(run("task resume " + where_ + " --all --json"), 0,
         {"\"tag\": null", "\"bytes\": " + std::to_string(6 * page())});
  EXPECT_TRUE(is_whole(dev()));
  expect_usage("task suspend " + where_, "either TAG or --all");
  expect_usage("task resume --all " + where_ + " weights", "either TAG or --all");
  expect(run("task suspend " + where_ + " weihgts"), 3,
         {where_ + ": no memory has the tag 'weihgts'; did you mean 'weights'?"});
}

// One rule for one task and for several.
TEST_F(task_commands, what_is_as_it_should_be_is_no_failure) {
  for (const std::string each : {"", " --each"}) {
    const std::string suspend = "task suspend '" + where_ + "' --all" + each,
                      resume = "task resume '" + where_ + "' --all" + each;
    expect(run(resume), 0, {"all tags: not suspended; nothing to do"});
    expect(run(suspend), 0, {"all tags suspended: "});
    expect(run(suspend), 0, {"all tags: suspended already (pinned); nothing to do"});
    expect(run(suspend + " --to pinned"), 0, {"nothing to do"});
    // Where it should be elsewhere, it is not as it should be.
    expect(run(suspend + " --to file"), 4,
           {where_ + ": cache: ", "suspended already, elsewhere: resume it first",
            "(found pinned, expected file)"});
    expect(run(resume), 0, {"all tags resumed: "});
    // Nor is a tag that does not exist.
    expect(run("task suspend '" + where_ + "' weihgts" + each), 3, {"'weihgts'"});
  }
}

// One line, with the numbers once, and what to do; without names of functions in two processes.
TEST_F(task_commands, what_a_task_refuses_is_said_once) {
  const std::string image = " -o '" + file("a.smi") + "'";
  const auto occurs = [](const std::string &text, const std::string &what) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
      ++n;
    return n;
  };
  ASSERT_EQ(run("task suspend '" + where_ + "' weights").status, 0);
  for (const std::string &request : {"task snapshot " + where_ + " --all" + image,
                                     "task snapshot " + where_ + " --tag weights" + image,
                                     "task handoff send " + where_ + " --all --to @nobody"}) {
    const ran r = run(request);
    expect(r, 4, {where_ + ": weights: memory of this tag is suspended: resume it first (at 0x"});
    EXPECT_EQ(occurs(r.err, "0x"), 1u) << r.err;
    EXPECT_EQ(occurs(r.err, "::"), 0u) << r.err;
    EXPECT_EQ(occurs(r.err, "busy"), 1u) << r.err;
  }
  ASSERT_EQ(run("task resume '" + where_ + "' weights").status, 0);
  expect(run("task snapshot " + where_ + " --all -o '" + file("no/where.smi") + "'"), 3,
         {"stillmap: task snapshot: " + where_ + ": " + file("no/") +
          "where.smi: cannot open the directory: No such file or directory\n"});
  expect(run("task migrate abort " + where_), 2,
         {": task migrate abort: " + where_ +
          ": no request that can be cancelled is being carried out: invalid argument\n"});
  // The folder for tests can be longer than a socket's name.
  const std::string none = unique_name("/tmp/stillmap-none");
  expect(run("task status " + none), 3,
         {none + ": there is no socket of this name: No such file or directory\n"});
  // For programs, all of it.
  const std::string json =
      run("task snapshot --json " + where_ + " --all -o '" + file("no/where.smi") + "'").out;
  for (const char *says :
       {"\"operation\": \"control::client::snapshot\"", "\"code\": \"No such file"}) {
    EXPECT_NE(json.find(says), std::string::npos) << json;
  }
}

TEST_F(task_commands, a_snapshot_is_made_and_can_be_restored) {
  const std::string first = file("a.smi"), second = file("b.smi");
  expect(run("task snapshot " + where_ + " --tag weights --tag cache -o '" + first + "'"), 0,
         {"stillmap: ok: " + first, "of contents in", "read back and verified"});
  EXPECT_EQ(run("image verify '" + first + "'").status, 0);
  put(dev(), device_address(control::testing::cache_at), pattern(page(), 9));
  expect(run("task snapshot " + where_ + " --all --compress lz4 --parent '" + first + "' -o '" +
             second + "'"),
         0, {"chunks are in the parent"});
  EXPECT_EQ(went_on_, 2);
  expect(run("image diff '" + first + "' '" + second + "'"), 6, {});
  expect(run("task snapshot " + where_ + " --all -o '" + first + "'"), 5, {"a.smi"});
  // (Not the first one, which the second builds on.)
  const std::string third = file("c.smi");
  std::ofstream(third) << "in the way";
  expect(run("task snapshot --json --replace " + where_ + " --all -o '" + third + "'"), 0,
         {"\"contents_bytes\": " + std::to_string(6 * page()), "\"verified\": true"});
  const std::string key = file("key");
  std::ofstream(key) << std::string(64, 'a');
  ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
  const std::string secret = file("secret.smi");
  expect(run("task snapshot " + where_ + " --all -o '" + secret + "' --key '" + key +
             "' --sign-with '" + key + "'"),
         0, {"; encrypted; signed; read back and verified"});
  EXPECT_EQ(run("image verify '" + secret + "'").status, 2);
  expect(run("image inspect '" + secret + "' --key '" + key + "'"), 0, {"encrypted", "signed by "});
  // Another process has the addresses free.
  expect(run("image restore '" + second + "'"), 0,
         {"0x", "weights", "at the original addresses, every byte compared; it can be restored"});
  expect(run("image restore --relocate --tag cache '" + second + "'"), 0,
         {"was 0x", "other addresses"});
  expect(run("image restore --json --tag cache '" + second + "'"), 0,
         {"\"compared_bytes\": " + std::to_string(2 * page()), "\"sent_to\": null"});
  expect(run("image restore --tag nobody '" + second + "'"), 3,
         {second + ": no memory has the tag 'nobody'"});
}

TEST_F(task_commands, memory_goes_from_an_image_to_a_holder_and_on) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string image = file("a.smi"), again = file("b.smi");
  // Of pages that nobody could export.
  start_task({}, false);
  expect(run("task snapshot " + where_ + " --all -o '" + image + "'"), 0, {});
  stop_task();

  const std::string holder = new_place();
  start_receiver(holder);
  expect(run("image restore '" + image + "' --send-to " + holder), 0, {"now owned by process "});
  const std::string said = taken();
  EXPECT_NE(said.find("held, control socket " + holder + ".control"), std::string::npos) << said;
  EXPECT_NE(said.find("weights"), std::string::npos) << said;
  const std::string ask = holder + ".control";
  expect(run("task suspend --timeout 30 " + ask + " weights"), 0, {});
  expect(run("task resume " + ask + " weights"), 0, {});
  expect(run("task snapshot " + ask + " --all -o '" + again + "'"), 0, {});
  EXPECT_EQ(run("image diff '" + image + "' '" + again + "'").status, 0);
  // On to a second one; with nothing left the first one ends.
  const std::string next = new_place();
  start_receiver(next, "--control " + next + "-2", "next");
  expect(run("task handoff send " + ask + " --all --to " + next), 0,
         {"in 2 blocks (6 pages), now owned by process " + std::to_string(processes_.at("next"))});
  EXPECT_EQ(ended("receiver"), 0);
  expect(run("task status --timeout 30 " + next + "-2"), 0, {"weights", "live"});
  std::filesystem::remove(again);
  expect(run("task snapshot " + next + "-2 --all -o '" + again + "'"), 0, {});
  EXPECT_EQ(run("image diff '" + image + "' '" + again + "'").status, 0);
}

// Regression: both ended with status 0, and the memory was gone.
TEST_F(task_commands, one_that_holds_the_only_copy_asks_before_it_loses_it) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string receiver = new_place(), ask = receiver + ".control";
    start_receiver(receiver);
    expect(run("task handoff send " + where_ + " --tag weights --to " + receiver), 0, {});
    taken();
    ::kill(processes_.at("receiver"), signal);
    const std::string warned = once("receiver.err", "ask again");
    for (const std::string &says :
         {std::string("(weights) is here only"), "task snapshot " + ask + " --all"}) {
      EXPECT_NE(warned.find(says), std::string::npos) << warned;
    }
    expect(run("task status " + ask), 0, {"weights", "live"});
    ::kill(processes_.at("receiver"), signal);
    EXPECT_EQ(ended("receiver"), 1);
    once("receiver.err", ": lost ");
    start_task();
  }
}

TEST_F(task_commands, one_that_holds_the_only_copy_saves_it) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string before = file("before.smi"), saved = file("saved.smi");
  const std::string receiver = new_place(), save = " --save '" + saved + "'";
  expect(run("task snapshot " + where_ + " --tag weights -o '" + before + "'"), 0, {});
  expect(run("task handoff receive " + receiver + " --save '" + before + "'"), 5,
         {"the image exists already"});
  expect(run("task handoff receive " + receiver + " --save '" + file("no/where") + "'"), 3,
         {"no/where"});
  start_receiver(receiver, save);
  expect(run("task handoff send " + where_ + " --tag weights --to " + receiver), 0, {});
  taken();
  ::kill(processes_.at("receiver"), SIGTERM);
  EXPECT_EQ(ended("receiver"), 0);
  once("receiver.err", "saved.smi: saved ");
  EXPECT_EQ(run("image diff '" + before + "' '" + saved + "'").status, 0);
}

TEST_F(task_commands, one_that_waits_has_nothing_to_save) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  for (const bool saves : {true, false}) {
    const std::string receiver = new_place();
    start_receiver(receiver, saves ? "--save '" + file("nothing.smi") + "'" : "");
    expect(run("task status --timeout 30 " + receiver + ".control"), 4, {"has not arrived"});
    ::kill(processes_.at("receiver"), SIGTERM);
    EXPECT_EQ(ended("receiver"), saves ? 0 : 1);
  }
  once("receiver.err", "cancel");
  EXPECT_FALSE(std::filesystem::exists(file("nothing.smi")));
}

// What is suspended is mapped nowhere, and is here all the same.
TEST_F(task_commands, one_that_holds_suspended_memory_goes_on_when_the_rest_has_left) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string receiver = new_place(), ask = receiver + ".control", next = new_place();
  start_receiver(receiver);
  expect(run("task handoff send " + where_ + " --tag weights --tag cache --to " + receiver), 0, {});
  taken();
  expect(run("task suspend " + ask + " weights"), 0, {});
  start_receiver(next, "--free", "next");
  expect(run("task handoff send " + ask + " --tag cache --to " + next), 0, {});
  expect(run("task resume " + ask + " weights"), 0, {});
  ended("next");
}

TEST_F(task_commands, what_is_taken_can_be_given_back_to_the_device) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string receiver = new_place();
  start_receiver(receiver, "--free");
  expect(run("task handoff send " + where_ + " --tag weights --json --to " + receiver), 0,
         {"\"pages\": 4", "\"copied_bytes\": 0"});
  EXPECT_NE(taken().find("; freed"), std::string::npos);
  EXPECT_EQ(ended("receiver"), 0);
  EXPECT_EQ(dev().space().stats().mapped_bytes, 2 * page());
  // What went away is not suspended: it was counted here and at the receiver.
  expect(run("task status --json " + where_), 0,
         {"\"state\": \"empty\"", "\"suspended_bytes\": 0"});
  EXPECT_EQ(run("task status " + where_).out.find("suspended,"), std::string::npos);
  EXPECT_EQ(run("task handoff send " + where_ + " --tag weights --to " + receiver).status, 4);
}

// Regression: the first connection ended the receiver, whatever it was.
TEST_F(task_commands, a_connection_without_memory_does_not_end_a_receiver) {
  const std::string receiver = new_place();
  start_receiver(receiver, "--free");
  constexpr std::chrono::seconds timeout(30);
  {
    const auto stray = handoff::connection::connect(receiver, timeout);
    ASSERT_TRUE(stray) << stray.error().message();
    auto liar = handoff::connection::connect(receiver, timeout);
    ASSERT_TRUE(liar) << liar.error().message();
    const handoff::hello hello{handoff::role::sender, dev().uuid(), page()};
    ASSERT_TRUE(liar->send(static_cast<std::uint16_t>(handoff::kind::hello), encode(hello), {},
                           timeout, {}));
  }
  expect(run("task handoff send " + where_ + " --tag weights --to " + receiver), 0,
         {"now owned by process "});
  EXPECT_EQ(ended("receiver"), 0);
  const std::string said = content(file("receiver.err"));
  EXPECT_NE(said.find("process " + std::to_string(::getpid()) + " offers no memory: "),
            std::string::npos)
      << said;
}

// Regression: it spoke to every socket, which ended receivers that accept once.
TEST_F(task_commands, listing_speaks_to_control_sockets_only) {
  // A name of a socket has 107 bytes at most, which a folder for tests can be longer than.
  const std::string folder = unique_name("/tmp/stillmap-list");
  std::filesystem::create_directory(folder);
  const std::string abstract = new_place(), path = folder + "/handoff",
                    control = folder + "/task.control";
  auto one = handoff::listener::create(abstract + "-receiver");
  auto two = handoff::listener::create(path);
  auto served = control::server::create(*device_, control);
  auto other = control::server::create(*device_, abstract + ".control");
  ASSERT_TRUE(one && two && served && other);
  for (const char *json : {"", "--json "}) {
    const ran r = run(std::string("task list ") + json + folder);
    expect(r, 0, {control, abstract + ".control"});
    EXPECT_EQ(r.out.find(abstract + "-receiver"), std::string::npos) << r.out;
    EXPECT_EQ(r.out.find(path + ' '), std::string::npos) << r.out;
  }
  for (const handoff::listener *at : {&*one, &*two}) {
    pollfd p{at->fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 0), 0) << "it was connected to";
  }
  std::filesystem::remove_all(folder);
}

// One that was given up while it did what was asked does it to its end: it is undone then.
TEST_F(task_commands, of_several_tasks_one_that_is_given_up_is_undone) {
  std::promise<void> stops, goes;
  std::atomic<bool> slow{false};
  control::server_options options;
  options.task.quiesce = [&, go = goes.get_future().share()](auto, auto) {
    if (slow.exchange(false)) {
      stops.set_value();
      go.wait();
    }
    return status();
  };
  start_task(std::move(options));
  ASSERT_EQ(run("task suspend '" + where_ + "' cache").status, 0);
  slow = true;
  constexpr std::chrono::seconds timeout{3};
  auto asked = std::async(std::launch::async, [&] {
    return tool::ask_each({where_}, tool::tag_request{}, timeout, timeout);
  });
  stops.get_future().wait();
  std::this_thread::sleep_for(timeout + std::chrono::milliseconds(500));
  goes.set_value();
  const auto done = asked.get();
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().line.find("no answer in 3 s; every other task is as it was"),
            std::string::npos)
      << done.error().line;
  const auto s = control::client(where_).status();
  ASSERT_TRUE(s) << s.error().message();
  for (const control::tag_status &t : s->tags) {
    EXPECT_EQ(t.mapped_bytes == 0, t.tag == "cache")
        << t.tag << ": suspended before, and only that";
  }
  EXPECT_EQ(run("task resume '" + where_ + "' --all").status, 0);
}

TEST_F(task_commands, several_tasks_are_as_they_were_where_one_is_not_there) {
  start_task();
  ASSERT_EQ(run("task suspend '" + where_ + "' cache").status, 0);
  const auto states = [&] {
    std::vector<std::uint64_t> out;
    for (const auto &t : control::client(where_).status()->tags) out.push_back(t.mapped_bytes);
    return out;
  };
  const auto before = states();
  for (const bool suspends : {true, false}) {
    const auto done = tool::ask_each({where_, where_ + "-none"}, {.suspends = suspends},
                                     std::chrono::seconds(60), std::chrono::seconds(60));
    ASSERT_FALSE(done);
    EXPECT_NE(done.error().line.find("every other task is as it was"), std::string::npos)
        << done.error().line;
    EXPECT_EQ(states(), before) << (suspends ? "suspend" : "resume");
  }
  expect_usage("task suspend '" + where_ + "' --all --each --to discard", "does not come back");
  EXPECT_EQ(run("task resume '" + where_ + "' --all").status, 0);
}

TEST_F(task_commands, who_is_not_there_is_named) {
  expect(run("task status @nobody-at-all"), 3, {"no process accepts connections"});
  expect(run("task handoff receive " + new_place() + " --timeout 0.05 </dev/null"), 4,
         {"did not answer in time"});
  expect_usage("task status", "TASK");
  expect_usage("task snapshot " + where_ + " -o x.smi", "either --tag or --all");
  expect_usage("task snapshot " + where_ + " --all --tag weights -o x.smi",
               "either --tag or --all");
  expect_usage("task suspend " + where_ + " weights --to moon", "moon");
  expect_usage("task handoff", "there are send, receive");
  expect_usage("task handoff receive @x --free --control @y", "either --free or --control");
  expect_usage("task handoff send " + where_ + " --to @x", "--tag");
  expect_usage("task status --timeout -1 " + where_, "--timeout");
}

}  // namespace
}  // namespace stillmap::testing
