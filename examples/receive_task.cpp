// Receives a running task from another machine, and runs it on where it stopped.
//   receive_task                  sends a task to a second process of itself, checks it, and ends
//   receive_task FOLDER [SOCKET]  receives a task, and runs it with the control socket SOCKET until
//                                 Ctrl-D; Ctrl-D loses it. FOLDER has the own certificate.pem and
//                                 key.pem, the source's certificate as source.pem, and a folder
//                                 `records`; the address is written to FOLDER/address.
// The task is a counter: each step sets every byte of its memory to the number of the step.
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "examples/example.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t bytes = 4u << 20;
const std::vector<std::string> tags{"counter"};

// Runs on memory that somebody else owns. What it needs to go on is in that memory.
class counter {
 public:
  counter(const device &d, device_address at)
      : device_(d), at_(at), steps_(example::read<unsigned char>(d, at, 1).front()) {
    worker_ = std::jthread([this](std::stop_token stop) { run(stop); });
  }
  // Returns between two steps; none begins until resume().
  status pause() {
    std::unique_lock lock(mutex_);
    paused_ = true;
    changed_.wait(lock, [this] { return !working_; });
    return {};
  }
  void resume() {
    const std::lock_guard lock(mutex_);
    paused_ = false;
    changed_.notify_all();
  }
  int steps() const { return steps_; }
  void wait_for(int step) const {
    while (steps_ < step) std::this_thread::sleep_for(1ms);
  }

 private:
  void run(const std::stop_token &stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !paused_ && steps_ < 255; })) {
      working_ = true;
      lock.unlock();
      const std::vector<unsigned char> all(bytes, static_cast<unsigned char>(steps_ + 1));
      example::write(device_, at_, all.data(), all.size());
      ++steps_;
      std::this_thread::sleep_for(10ms);
      lock.lock();
      working_ = false;
      changed_.notify_all();
      if (stop.stop_requested()) return;
    }
  }
  const device &device_;
  const device_address at_;
  std::atomic<int> steps_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool paused_ = false, working_ = false;
  std::jthread worker_;  // last: it uses all of the above
};

// A text of the other process, which writes it under another name first.
void publish(const std::string &file, const std::string &text) {
  std::ofstream(file + ".new") << text;
  chmod((file + ".new").c_str(), 0600);  // a key that others may read is refused
  std::filesystem::rename(file + ".new", file);
}

// ---- The destination.

migration::credentials credentials_in(const std::string &folder, const char *peer) {
  auto mine =
      example::must(migration::load_credentials(folder + "/certificate.pem", folder + "/key.pem"));
  const auto theirs = example::must(migration::load_credentials(folder + '/' + peer, ""));
  mine.fingerprints = {example::must(migration::fingerprint_of(theirs))};
  return mine;
}

int receive(const std::string &folder, const std::string &socket, bool asked) {
  // Before anything else uses the addresses.
  const device d = example::open_mapping_device("receiving a task");
  auto acceptor = example::must(
      migration::create_tls_acceptor("127.0.0.1:0", credentials_in(folder, "source.pem")));
  auto receiver = example::must(migration::receiver::create(
      d, std::move(acceptor), {.records = folder + "/records", .max_tasks = 1}));
  publish(folder + "/address", receiver.address());

  // From here on the task is here, and nowhere else.
  auto task = example::must(receiver.receive(1min));
  const virtual_range memory = task.memory.tagged(tags.front()).front();
  counter c(d, memory.begin);
  const int arrived = c.steps();
  c.wait_for(arrived + 3);
  example::check(arrived >= 3, "the task goes on at the destination where it stopped");

  // An operator can save it, hand it over, or send it on: it keeps its id and its record.
  control::server_options options;
  options.task.quiesce = [&](auto, auto) { return c.pause(); };
  options.task.resume = [&](auto) { c.resume(); };
  options.task.released = [](auto) { std::printf("the task has gone on to another process\n"); };
  options.records = folder + "/records";
  options.id = task.task;
  options.record = std::make_shared<migration::record_file>(std::move(task.record));
  const auto server = example::must(control::server::create(d, socket, options));
  if (asked) {
    std::printf("epoch %llu; try: stillmap task snapshot %s --all -o IMAGE\n",
                static_cast<unsigned long long>(task.epoch), socket.c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
  }
  const auto saved =
      example::must(control::client(socket).snapshot({.tags = tags, .path = folder + "/task.smi"}));
  example::check(saved.contents_bytes == bytes, "the task can be saved there");
  return 0;
}

// ---- The source.

pid_t start_receiver(std::string folder) {
  std::string program = "/proc/self/exe", socket = folder + "/control", word = "checked";
  char *arguments[] = {program.data(), folder.data(), socket.data(), word.data(), nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) {
    example::stop("no second process");
  }
  return child;
}

// Both ends' certificates, each with the other's.
void make_credentials(const std::string &here, const std::string &there) {
  const auto source = example::must(migration::make_self_signed("source"));
  const auto destination = example::must(migration::make_self_signed("destination"));
  publish(here + "/certificate.pem", source.certificate);
  publish(here + "/key.pem", source.key);
  publish(here + "/destination.pem", destination.certificate);
  publish(there + "/certificate.pem", destination.certificate);
  publish(there + "/key.pem", destination.key);
  publish(there + "/source.pem", source.certificate);
}

int send(const std::string &folder) {
  const device d = example::open_mapping_device("sending a task");
  const std::string here = folder + "/here", there = folder + "/there";
  for (const std::string &end : {here, there}) {
    std::filesystem::create_directories(end + "/records");
  }
  make_credentials(here, there);
  const pid_t receiver = start_receiver(there);

  // Far from what Linux chooses, so that the addresses are free in the other process, too.
  const auto pool = example::must(page_pool::create(d));
  auto buffer = example::must(growable_buffer::create(d, {.reserve_bytes = bytes,
                                                          .tag = tags.front(),
                                                          .hint = device_address(0x2000'0000'0000),
                                                          .pools = {pool}}));
  example::must(buffer.resize(bytes));
  const std::vector<unsigned char> zeros(bytes);
  example::write(d, buffer.address(), zeros.data(), bytes);
  counter c(d, buffer.address());
  c.wait_for(3);

  while (!std::filesystem::exists(there + "/address")) {
    if (waitpid(receiver, nullptr, WNOHANG) == receiver) example::stop("the receiver has ended");
    std::this_thread::sleep_for(5ms);
  }
  std::string address;
  std::getline(std::ifstream(there + "/address"), address);
  const auto to = example::must(
      migration::create_tls_transport(address, credentials_in(here, "destination.pem")));
  migration::send_options options{.records = here + "/records"};
  options.quiesce = [&] { return c.pause(); };
  options.resume = [&] { c.resume(); };
  const migration::sent_memory sent = migration::sender(d, tags, options).send(*to);
  if (sent.failure) example::stop(sent.failure->message());
  example::check(sent.owner == migration::owner::destination && sent.epoch == 2,
                 "the task belongs to the other process");
  int exit_status = 0;
  return waitpid(receiver, &exit_status, 0) == receiver && exit_status == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc > 1) {
    const std::string socket =
        argc > 2 ? argv[2] : "@stillmap-" + std::to_string(getpid()) + ".control";
    return receive(argv[1], socket, argc <= 3);
  }
  std::string folder =
      (std::filesystem::temp_directory_path() / "stillmap-example-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) example::stop("no temporary directory");
  const int failed = send(folder);
  std::filesystem::remove_all(folder);
  return failed;
}
