// stillmap task migrate: a task of one process, sent to others, with the command at either end.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/migration/record.h"
#include "tests/support/unique_name.h"
#include "tests/tool/task_test.h"

namespace stillmap::testing {
namespace {

using control::testing::is_whole;
using migration::ownership;

const std::string task = "00112233445566778899aabbccddeeff";

class migrate_commands : public task_test {
 protected:
  void SetUp() override {
    task_test::SetUp();
    if (!IsSkipped()) make_credentials();
  }

  std::string send(const std::string &more) const {
    return "task migrate send " + where_ + " --all --to " + place_of("there") +
           as("here", "there") + "--records " + records("here") + " --task " + task + ' ' + more;
  }
  // As the one process leaves it that sends the task to "there", and the one that receives it.
  void write_record(const char *who, ownership state, std::uint64_t epoch, const std::string &peer,
                    std::optional<migration::transfer_state> transfer = {}) const {
    migration::record r;
    r.task = *migration::parse_task_id(task);
    r.session.bytes[0] = std::byte{1};
    r.state = state;
    r.epoch = epoch;
    r.peer = peer;
    if (transfer) {
      r.set_transfer(r.session, 5, *transfer);
    } else {
      r.certificate = fingerprint("there");
    }
    auto file_of = migration::record_file::open(file(std::string("records-") + who), r.task);
    ASSERT_TRUE(file_of);
    ASSERT_TRUE(file_of->write(r));
  }
};

TEST_F(migrate_commands, a_task_goes_to_another_process_and_on_to_a_third) {
  start_task();
  const std::string before = file("a.smi"), after = file("b.smi"), last = file("c.smi");
  expect(run("task snapshot " + where_ + " --all -o '" + before + "'"), 0, {});
  const int went_on = went_on_;
  expect(run("task migrate status " + records("here")), 0, {"no records"});
  expect(run("task migrate status " + where_), 0, {"no migration is running"});
  start_destination("there", as("there", "here") + "--records " + records("there"));
  const ran sent = run(send(""));
  expect(sent, 0, {"task " + task + ", epoch 2: ", "stillmap: ok: now owned by there (127.0.0.1:"});
  for (const char *says :
       {"migrate: the addresses are free at the destination",
        "migrate: round 1: ", "migrate: the task is stopped", "migrate: all memory has arrived"}) {
    EXPECT_NE(sent.err.find(says), std::string::npos) << sent.err;
  }
  EXPECT_EQ(given_away_, 1);
  EXPECT_EQ(went_on_, went_on);
  EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
  const std::string came = once("there.out", "stillmap: ok: ");
  const std::string holder = control_of("there");
  for (const std::string &says : {"task " + task + ", epoch 2, from here (127.0.0.1:",
                                  std::string("weights"), "held, control socket " + holder}) {
    EXPECT_NE(came.find(says), std::string::npos) << came;
  }
  expect(run("task migrate status " + records("here")), 0,
         {"task " + task + ": released, epoch 2", "there (127.0.0.1:", " owns it."});
  expect(run("task migrate status " + records("there")), 0,
         {"running, epoch 2, locked by a process", "It arrived from here ("});
  expect(run("task migrate status --json " + records("there") + " 0011"), 0,
         {"\"state\": \"running\"", "\"locked\": true", "\"in_doubt\": false"});
  expect(run("task snapshot '" + holder + "' --all -o '" + after + "'"), 0, {});
  EXPECT_EQ(run("image diff '" + before + "' '" + after + "'").status, 0)
      << "other bytes or addresses";

  // On: the holder knows its records and its task by itself, and with nothing left it ends.
  std::filesystem::create_directory(file("records-third"));
  start_destination("third", as("here", "there") + "--json --records " + records("third"));
  expect(run("task migrate send '" + holder + "' --all --json --to " + place_of("third") +
             as("there", "here")),
         0, {"\"owner\": \"destination\"", "\"task\": \"" + task, "\"epoch\": 3"});
  once("third.out", "\"epoch\": 3");
  EXPECT_EQ(ended("there"), 0);
  expect(run("task snapshot '" + control_of("third") + "' --all -o '" + last + "'"), 0, {});
  EXPECT_EQ(run("image diff '" + before + "' '" + last + "'").status, 0)
      << "other bytes or addresses";
  ::kill(processes_.at("third"), SIGTERM);
  EXPECT_NE(once("third.err", "ask again").find(" (cache, weights) is here only"),
            std::string::npos);
  ::kill(processes_.at("third"), SIGTERM);
  EXPECT_EQ(ended("third"), 1);
  once("third.err", ": lost ");
  expect(run("task migrate status " + records("third")), 0, {"running, epoch 3\n", "has ended"});
}

TEST_F(migrate_commands, one_that_is_given_up_leaves_the_task_as_it_was) {
  std::promise<void> stopping;
  control::server_options how;
  how.task.quiesce = [&](auto, std::stop_token stop) {
    stopping.set_value();
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return status();
  };
  start_task(std::move(how));
  start_destination("there", as("there", "here") + "--records " + records("there"));
  const std::string line = send("") + " >'" + file("send.out") + "' 2>'" + file("send.err") + "'";
  auto sending = std::async(std::launch::async,
                            [&] { return std::system(("'" + program() + "' " + line).c_str()); });
  stopping.get_future().wait();
  expect(run("task migrate status " + where_), 0,
         {"migrate, for ", "(step: ", "To cancel it: stillmap task migrate abort " + where_});
  expect(run("task status --json " + where_), 0,
         {"\"kind\": \"migrate\"", "\"step\": \"", "\"in_doubt\": false"});
  expect(run("task suspend " + where_ + " weights"), 4, {where_, "migrate"});
  expect(run("task migrate abort " + where_), 0,
         {"stillmap: ok: migrate cancelled; the task continues"});
  EXPECT_EQ(WEXITSTATUS(sending.get()), 1);
  once("send.err", "cancelled");
  once("send.err", "the task continues here, and nothing has changed");
  EXPECT_EQ(went_on_, 1);
  EXPECT_EQ(given_away_, 0);
  EXPECT_TRUE(is_whole(dev()));
  expect(run("task migrate status " + records("here")), 0, {"no records"});
  expect(run("task migrate abort " + where_), 2, {where_});
  expect(run("task migrate resolve " + where_), 2, {where_});
  once("there.err", "receive: the task did not arrive: ");
  ::kill(processes_.at("there"), SIGTERM);
  EXPECT_EQ(ended("there"), 1);
}

// By a task without UCX over TLS, and by the command itself, which was asked for it, over UCX.
TEST_F(migrate_commands, ucx_carries_the_contents_where_both_ends_are_asked_for_it) {
  const std::string receive = "task migrate receive 127.0.0.1:0 --records " + records("there") +
                              as("there", "here") + "--ucx ";
  const ran malformed = run(receive + "nonsense");
  if (malformed.err.find("built without UCX") != std::string::npos) {
    GTEST_SKIP() << "the command was built without UCX";
  }
  expect(malformed, 2, {"nonsense"});
  expect(run(receive + "127.0.0.1:0", "UCX_TLS=no_such_transport"), 5, {"UCX cannot start"});
  start_task();
  start_destination("there",
                    as("there", "here") + "--ucx 127.0.0.1:0 --records " + records("there"));
  once("there.err", "data channels over ucx at 127.0.0.1:");
  expect(
      run(send("")), 0,
      {"contents over TLS: ", "the source has no connector of this transport", "ucx 127.0.0.1:"});
  const std::string holder = control_of("there");
  once("there.out", "stillmap: ok: ");
  for (const std::string who : {"third", "fourth"}) {
    std::filesystem::create_directory(file("records-" + who));
  }
  start_destination("third", as("here", "there") + "--ucx :0 --records " + records("third"));
  expect(run("task migrate send '" + holder + "' --all --json --to " + place_of("third") +
             as("there", "here")),
         0, {"\"data_transport\": \"ucx\"", "\"data_fallback\": null"});
  EXPECT_EQ(ended("there"), 0);
  once("third.out", "stillmap: ok: ");
  start_destination("fourth", as("there", "here") + "--ucx :0 --records " + records("fourth"));
  expect(run("task migrate send '" + control_of("third") + "' --all --tls --json --to " +
             place_of("fourth") + as("here", "there")),
         0, {"\"data_transport\": \"tls\"", "\"data_fallback\": \""});
  EXPECT_EQ(ended("third"), 0);
  once("fourth.out", "stillmap: ok: ");
}

// UCX handles signals and watches mmap: a command that was not asked for it has not loaded it.
TEST_F(migrate_commands, ucx_is_not_loaded_unless_it_is_asked_for) {
  start_destination("there", as("there", "here") + "--records " + records("there"));
  EXPECT_FALSE(place_of("there").empty());
  const std::string maps = content("/proc/" + std::to_string(processes_.at("there")) + "/maps");
  EXPECT_NE(maps.find("libc.so"), std::string::npos) << maps;
  EXPECT_EQ(maps.find("libucp"), std::string::npos);
}

TEST_F(migrate_commands, one_that_waits_has_nothing_to_save) {
  start_destination("there", as("there", "here") + "--records " + records("there") + " --save '" +
                                 file("nothing.smi") + "'");
  EXPECT_FALSE(place_of("there").empty());
  ::kill(processes_.at("there"), SIGTERM);
  EXPECT_EQ(ended("there"), 0);
  once("there.err", "nothing has arrived");
  EXPECT_FALSE(std::filesystem::exists(file("nothing.smi")));
}

TEST_F(migrate_commands, who_is_not_believed_gets_nothing) {
  start_task();
  start_destination("there", as("there", "here") + "--records " + records("there"));
  const std::string to = "task migrate send " + where_ + " --all --to " + place_of("there") +
                         " --records " + records("here");
  expect(run(to + as("here", "here")), 5,
         {place_of("there") + ": ", "certificate verify failed", "--peer-fingerprint",
          "the task continues here, and nothing has changed"});
  expect(run(to + as("there", "there")), 5, {"does not trust our certificate"});
  expect(run(to + " --peer-fingerprint " + fingerprint("there") + " --credentials '" +
             file("nowhere") + "'"),
         3, {"nowhere/certificate.pem: "});
  expect(run("task migrate send " + where_ + " --all --to 127.0.0.1:1 --records " +
             records("here") + as("here", "there")),
         3, {"127.0.0.1:1", "the task continues here, and nothing has changed"});
  EXPECT_EQ(went_on_ + given_away_, 0);
  EXPECT_TRUE(is_whole(dev()));
}

// What a process leaves behind that dies between its intent and the answer.
TEST_F(migrate_commands, records_are_read_and_settled_without_their_process) {
  start_destination("there", as("there", "here") + "--records " + records("there"));
  const std::string place = place_of("there");
  const std::string resolve =
      "task migrate resolve " + records("here") + " --task " + task + as("here", "there");
  write_record("here", ownership::intent, 4, place + " there");
  expect(run("task migrate status " + records("here")), 0,
         {"intent, epoch 4\n", "IN DOUBT", "there (" + place + ")",
          "stillmap task migrate resolve " + file("records-here") + " --task " + task + " --to " +
              place});
  expect(run("task migrate status --json " + records("here")), 0, {"\"in_doubt\": true"});
  // The receiver that replies has other records.
  expect(run(resolve + " --timeout 1"), 7, {"do not list the transfer", "in doubt"});
  write_record("there", ownership::none, 0, "of here", migration::transfer_state::offered);
  expect(run("task migrate status " + records("there")), 0,
         {"none, epoch 0\n", "began, and did not complete", "has never owned the task"});
  expect(run(resolve), 0, {"stillmap: ok: it did not arrive at " + place, "epoch 1005"});
  expect(run("task migrate status " + records("here")), 0,
         {"owner, epoch 1005\n", "This machine owns it"});
  expect(run("task migrate status " + records("there")), 0,
         {"It did not arrive from here (of), which still owns it."});
  expect(run(resolve), 2, {file("records-here")});
  // That it is there, its record says.
  write_record("here", ownership::intent, 4, "192.0.2.1:1 elsewhere");
  write_record("there", ownership::running, 5, "of here", migration::transfer_state::committed);
  expect(run(resolve + " --to " + place + " --json"), 0,
         {"\"owner\": \"destination\"", "\"epoch\": 5"});
  expect(run("task migrate status " + records("here")), 0, {"released, epoch 5\n"});
  // Nobody answers.
  write_record("here", ownership::intent, 6, "127.0.0.1:1 there");
  const ran nobody = run(resolve + " --timeout 0");
  EXPECT_EQ(nobody.status, 7) << nobody.err;
  EXPECT_NE(nobody.err.find("127.0.0.1:1 decides"), std::string::npos) << nobody.err;
  expect(run("task migrate status " + records("here")), 0, {"IN DOUBT"});
  // Damaged, and not there.
  std::filesystem::resize_file(file("records-here") + '/' + task + ".record", 20);
  const ran damaged = run("task migrate status " + records("here"));
  EXPECT_EQ(damaged.status, 1);
  EXPECT_NE(damaged.out.find("corrupt"), std::string::npos) << damaged.out;
  expect(run("task migrate status " + records("here") + " ff"), 3, {"no record of a task ff"});
}

TEST_F(migrate_commands, credentials_are_made_once_and_for_oneself) {
  struct stat st {};
  ASSERT_EQ(::stat((file("here") + "/key.pem").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  expect(run("task migrate credentials '" + file("here") + "'"), 5, {"already exists"});
  const ran third = run("task migrate credentials --json '" + file("third") + "'");
  ASSERT_EQ(third.status, 0) << third.err;
  expect(third, 0, {"\"fingerprint\": \"" + fingerprint("third")});
  expect(run("task migrate credentials '" + file("no/where") + "'"), 3, {"No such file"});
}

// Regression: both were found after the task had arrived: it was held, and nothing could reach it.
TEST_F(migrate_commands, a_receiver_that_could_not_be_reached_or_write_records_does_not_start) {
  const std::string receive = "task migrate receive 127.0.0.1:0 " + as("there", "here");
  const auto taken =
      control::server::create(dev(), stillmap::testing::unique_name("@stillmap-taken"));
  ASSERT_TRUE(taken) << taken.error().message();
  expect(run(receive + " --records " + records("there") + " --control " + taken->address()), 4,
         {taken->address(), "the address is in use"});
  expect(run(receive + " --records '" + file("no/where") + "'"), 3, {file("no/where")});
}

TEST_F(migrate_commands, a_status_is_of_a_folder_or_of_a_task) {
  where_ += ".control";  // so that it is found by its process
  start_task();
  const std::string pid = std::to_string(::getpid()), none = file("no-records"),
                    plain = file("file");
  std::ofstream(plain) << "neither";
  expect(run("task migrate status " + pid), 0, {"process " + pid + ": no migration is running"});
  expect(run("task migrate status name:no-such-program"), 3, {"no task is name:no-such-program"});
  for (const char *command : {"status", "resolve"}) {
    expect(run(std::string("task migrate ") + command + " '" + none + "'"), 3,
           {none + ": there is neither a folder of records nor a socket of this name\n"});
    expect(run(std::string("task migrate ") + command + " '" + plain + "'"), 3,
           {plain + ": it is neither a folder of records nor a socket\n"});
  }
}

TEST_F(migrate_commands, wrong_usage_is_told_at_once) {
  const std::string who = " --credentials x --peer-fingerprint " + std::string(64, 'a') + ' ';
  expect_usage("task migrate", "there are credentials, receive, send, status, abort, resolve");
  expect_usage("task migrate send @x --all" + who, "--to");
  expect_usage("task migrate send @x --to h:1" + who, "either --tag or --all");
  expect_usage("task migrate send @x --all --to h:1 --credentials x", "a trusted peer is needed");
  expect_usage("task migrate send @x --all --to h:1 --peer-fingerprint " + std::string(64, 'a'),
               "our identity is needed");
  expect_usage("task migrate send @x --all --to h:1 --cert x" + who, "our identity is needed");
  expect_usage("task migrate send @x --all --to h:1 --credentials x --peer-fingerprint abc",
               "64 hexadecimal digits");
  expect_usage("task migrate send @x --all --to h:1 --name n" + who, "--authority");
  expect_usage("task migrate send @x --all --to h:1 --task 12" + who, "32 hexadecimal digits");
  expect_usage("task migrate send @x --all --to h:1 --max-downtime 0" + who, "--max-downtime");
  expect_usage("task migrate send @x --all --to h:1 --channels 65" + who, "--channels");
  expect_usage("task migrate receive :1" + who, "--records");
  expect(run("task migrate receive :1 --records r" + who), 3, {"certificate.pem"});
  expect_usage("task migrate resolve '" + file("records-here") + "'", "--task");
  expect_usage("task migrate resolve @x --task " + task, "needs neither --task");
  expect_usage("task migrate resolve @x --decider h:1", "--decider");
  expect_usage("task migrate resolve @x --certificate-replaced", "--certificate-replaced");
  expect_usage("task migrate status @x 0011", "HEX has an effect only with a folder of records");
  expect(run("task migrate status @nobody-at-all"), 3, {"no process accepts connections"});
}

}  // namespace
}  // namespace stillmap::testing
