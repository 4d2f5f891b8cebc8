// A task that an operator controls over a Unix socket: it writes device memory in steps, and stops
// between two steps when its memory is suspended, saved or moved.
//   controlled_task          controls itself, checks the results, and ends
//   controlled_task SOCKET   runs until Ctrl-D, for `stillmap task status SOCKET` and the other
//                            commands: suspend, resume, snapshot, handoff, migrate
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "examples/example.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t bytes = 16u << 20;

// Memory that other processes can receive or restore needs two things. Its addresses must be unused
// there, so they are far from those that Linux chooses for programs, libraries, heaps and stacks.
constexpr device_address far_address(0x2000'0000'0000);
// And its pages must be exportable as file descriptors, where the device can do that.
growable_buffer create_movable_buffer(const device &d) {
  const handle_type exportable =
      d.capabilities().posix_fd_export ? handle_type::posix_fd : handle_type::none;
  const auto pool = example::must(page_pool::create(d, {.exportable = exportable}));
  auto buffer = example::must(growable_buffer::create(
      d, {.reserve_bytes = 64u << 20, .tag = "weights", .hint = far_address, .pools = {pool}}));
  example::must(buffer.resize(bytes));
  return buffer;
}

// The number that every byte of the memory has; -1 if they differ.
int value_of(const device &d, device_address at) {
  const auto seen = example::read<unsigned char>(d, at, bytes);
  const bool equal = std::equal(seen.begin() + 1, seen.end(), seen.begin());
  return equal ? seen.front() : -1;
}

// Each step sets every byte to the number of the step.
class task {
 public:
  explicit task(const device &d) : device_(d), memory_(create_movable_buffer(d)) {
    worker_ = std::jthread([this](std::stop_token stop) { run(stop); });
  }

  // Returns between two steps, and lets no further step begin.
  status pause(const std::stop_token &stop) {
    std::unique_lock lock(mutex_);
    paused_ = true;
    if (!changed_.wait(lock, stop, [this] { return !working_; })) {
      paused_ = false;
      return make_error(errc::operation_canceled, "stop requested");
    }
    return {};
  }
  void resume() {
    const std::lock_guard lock(mutex_);
    paused_ = false;
    changed_.notify_all();
  }
  unsigned steps() const { return steps_; }

 private:
  void run(const std::stop_token &stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !paused_; })) {
      working_ = true;
      lock.unlock();
      step();
      lock.lock();
      working_ = false;
      changed_.notify_all();
      if (stop.stop_requested()) return;
    }
  }
  void step() {
    const std::vector<unsigned char> all(bytes, static_cast<unsigned char>(steps_ + 1));
    example::write(device_, memory_.address(), all.data(), all.size());
    ++steps_;
  }

  const device &device_;
  growable_buffer memory_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool paused_ = false, working_ = false;
  std::atomic<unsigned> steps_{0};
  std::jthread worker_;  // last: it uses all of the above
};

// Another process: restores the image, then receives the memory itself. Both have the addresses that
// they have in the task.
int run_receiver(const std::string &image, const std::string &socket) {
  const device d = example::open_mapping_device("restoring memory");
  {
    const auto restored = example::must(snapshot::restore(d, image));
    const auto range = restored.memory.tagged("weights").front();
    example::check(value_of(d, range.begin) >= 0,
                   "another process restores the image at the same address");
  }
  if (!d.capabilities().posix_fd_export) return 0;
  auto listener = example::must(handoff::listener::create(socket));
  auto sender = example::must(listener.accept(30s));
  const auto received = example::must(handoff::receive(d, sender));
  const auto range = received.tagged("weights").front();
  example::check(value_of(d, range.begin) >= 0,
                 "another process receives the memory at the same address");
  return 0;
}

pid_t start_receiver(std::string image, std::string socket) {
  std::string program = "/proc/self/exe", word = "receive";
  char *arguments[] = {program.data(), word.data(), image.data(), socket.data(), nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) {
    example::stop("no second process");
  }
  return child;
}

// What an operator does with the command, with the same client.
void operate(const device &d, const task &t, const std::string &socket) {
  const control::client client(socket);
  while (t.steps() < 3) std::this_thread::yield();

  const auto suspended = example::must(client.suspend({.tag = "weights"}));
  example::check(suspended.bytes == bytes && d.space().stats().mapped_bytes == 0,
                 "suspend: the device has its memory back");
  const unsigned step = t.steps();
  std::this_thread::sleep_for(20ms);
  example::check(t.steps() == step, "the task does not work meanwhile");
  const auto status = example::must(client.status());
  example::check(status.tags.size() == 1 && status.tags[0].suspended_bytes == bytes,
                 "status shows the suspended memory");
  example::must(client.resume("weights"));
  while (t.steps() < step + 3) std::this_thread::yield();
  example::check(true, "resume: the task continues");

  char folder[] = "/tmp/stillmap-example-XXXXXX";
  if (mkdtemp(folder) == nullptr) example::stop("no temporary directory");
  const std::string image = std::string(folder) + "/task.smi";
  example::must(client.snapshot({.tags = {"weights"}, .path = image}));
  const std::string receiving = socket + "-receiver";
  const pid_t receiver = start_receiver(image, receiving);
  if (d.capabilities().posix_fd_export) {
    const auto sent = example::must(client.handoff({.tags = {"weights"}, .to = receiving}));
    example::check(sent.bytes == bytes && d.space().stats().mapped_bytes == 0,
                   "handoff: the memory belongs to another process");
  }
  int exit_status = 0;
  const bool ended = waitpid(receiver, &exit_status, 0) == receiver;
  unlink(image.c_str());
  rmdir(folder);
  if (!ended || exit_status != 0) example::stop("the second process failed");
}

}  // namespace

int main(int argc, char **argv) {
  if (argc == 4 && std::string(argv[1]) == "receive") return run_receiver(argv[2], argv[3]);
  const device d = example::open_mapping_device("suspending memory");
  task t(d);
  control::server_options options;
  options.task.quiesce = [&](auto, std::stop_token stop) { return t.pause(stop); };
  options.task.resume = [&](auto) { t.resume(); };
  // The task stays paused: no memory is mapped at its addresses any more.
  options.task.released = [](auto) { std::printf("the memory belongs to another process\n"); };
  const std::string socket =
      argc > 1 ? argv[1] : "@stillmap-task-" + std::to_string(getpid()) + ".control";
  const auto server = example::must(control::server::create(d, socket, options));
  if (argc > 1) {
    std::printf("try: stillmap task status %s\n", socket.c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    std::printf("%u steps\n", t.steps());
    return 0;
  }
  operate(d, t, socket);
  return 0;
}
