// Which signals the threads of this process block.
#pragma once

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace stillmap::testing {

inline std::set<std::string> all_threads() {
  std::set<std::string> out;
  for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
    out.insert(task.path().filename());
  }
  return out;
}

// To compare with later. The thread sanitizer starts a thread of its own beside the first one of a program:
// that is over by then.
inline std::set<std::string> threads_so_far() {
  std::thread([] {}).join();
  return all_threads();
}

struct new_threads {
  int seen = 0;
  std::string wrong;  // a line for each that would run a handler, or that blocks its own faults
};

// Of a thread. Waits until it runs its function: while the C library starts it, all are blocked, even
// those that the library uses itself. Nullopt: it has ended.
inline std::optional<std::uint64_t> blocked_signals(const std::string &task) {
  constexpr std::uint64_t starting = std::uint64_t{1} << 31;
  for (;;) {
    std::ifstream in("/proc/self/task/" + task + "/status");
    std::string line;
    while (std::getline(in, line) && line.rfind("SigBlk:", 0) != 0) {
    }
    if (!in) return std::nullopt;
    const std::uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
    if ((blocked & starting) == 0) return blocked;
    std::this_thread::yield();
  }
}

// Of the threads that are not in `before`.
inline new_threads signals_of_new_threads(const std::set<std::string> &before) {
  constexpr auto bit = [](int signal) { return std::uint64_t{1} << (signal - 1); };
  const std::uint64_t asynchronous = bit(SIGINT) | bit(SIGTERM) | bit(SIGALRM) | bit(SIGUSR1) |
                                     bit(SIGCHLD) | bit(SIGIO) | bit(SIGPROF) | bit(SIGRTMIN);
  const std::uint64_t raised = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) |
                               bit(SIGABRT) | bit(SIGTRAP) | bit(SIGSYS);
  new_threads out;
  for (const std::string &task : all_threads()) {
    if (before.count(task) != 0) continue;
    const auto blocked = blocked_signals(task);
    if (!blocked) continue;
    ++out.seen;
    if ((*blocked & asynchronous) != asynchronous || (*blocked & raised) != 0) {
      out.wrong += task + ": " + std::to_string(*blocked) + '\n';
    }
  }
  return out;
}

}  // namespace stillmap::testing
