// A task that its operator can ask: it counts in device memory, and stops between two steps when it
// is asked to let go of that memory.
//   asked_task           asks itself, and checks what happens
//   asked_task SOCKET    waits for stillmap status|suspend|resume|snapshot SOCKET, handoff give and
//                        migrate send, until Ctrl-D
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "examples/example.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;

namespace {

// Work in steps, each of which sets every byte to its number.
class task {
 public:
  explicit task(const device &d)
      : device_(d),
        memory_(
            example::must(growable_buffer::create(d, {.reserve = 64u << 20, .tag = "weights"}))) {
    example::must(memory_.resize(16u << 20));
    worker_ = std::jthread([this](std::stop_token stop) { work(stop); });
  }

  // Returns between two steps; no further one begins.
  status pause(const std::stop_token &stop) {
    std::unique_lock lock(mutex_);
    pause_ = true;
    if (!changed_.wait(lock, stop, [this] { return !working_; })) {
      pause_ = false;
      return make_error(errc::busy, "task::pause", "told to hurry");
    }
    return {};
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    pause_ = false;
    changed_.notify_all();
  }
  unsigned steps() const { return steps_; }
  bool is_at(unsigned step) const {
    const auto bytes = example::read<unsigned char>(device_, memory_.address(), memory_.size());
    for (const unsigned char b : bytes) {
      if (b != static_cast<unsigned char>(step)) return false;
    }
    return true;
  }

 private:
  void work(const std::stop_token &stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !pause_; })) {
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
    const std::vector<unsigned char> all(memory_.size(), static_cast<unsigned char>(steps_ + 1));
    example::write(device_, memory_.address(), all.data(), all.size());
    ++steps_;
  }

  const device &device_;
  growable_buffer memory_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool pause_ = false, working_ = false;
  std::atomic<unsigned> steps_{0};
  std::jthread worker_;  // goes first
};

template <class T>
T must(control::outcome<T> r) {
  if (!r) example::stop(r.error().text);
  return std::move(*r);
}

void ask_itself(const device &d, const task &t, const std::string &where) {
  const control::client ask(where);
  while (t.steps() < 3) std::this_thread::yield();
  const auto away = must(ask.suspend({"weights", checkpoint::keep_in::pinned_memory, ""}));
  example::check(away.bytes == 16u << 20, "the task let go of its memory");
  example::check(d.space().stats().mapped_bytes == 0, "nothing is mapped");
  const unsigned step = t.steps();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  example::check(t.steps() == step, "and it does not work meanwhile");
  const auto s = must(ask.status());
  example::check(s.tags.size() == 1 && s.tags[0].suspended_bytes == 16u << 20, "status says so");
  must(ask.resume("weights"));
  while (t.steps() < step + 3) std::this_thread::yield();
  example::check(true, "after resume it goes on where it was");
}

}  // namespace

int main(int argc, char **argv) {
  const device d = example::open_mapping_device("letting go of memory");
  task t(d);
  control::server_options how;
  how.task.quiesce = [&](auto, std::stop_token stop) { return t.pause(stop); };
  how.task.go_on = [&](auto) { t.go_on(); };
  // It stays paused: nothing is behind its addresses any more.
  how.task.given_away = [](auto) { std::printf("the memory is another process's now\n"); };
  const std::string where =
      argc > 1 ? argv[1] : "@stillmap-asked-task-" + std::to_string(std::random_device()());
  const auto server = example::must(control::server::start(d, where, how));
  if (argc > 1) {
    std::printf("ask me: stillmap status %s\n", where.c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    std::printf("%u steps\n", t.steps());
    return 0;
  }
  ask_itself(d, t, where);
  example::must(t.pause({}));
  example::check(t.is_at(t.steps()), "every byte is the last step's");
  return 0;
}
