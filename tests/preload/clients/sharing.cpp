// The client of sharing_test: two programs on one device whose memory does not fit together. sharing CASE
// Starts itself twice: `first` says when it has its memory, and ends when the second has ended; the cases are what the
// first does with its memory. Exits with the status of the second, or of the first where that is not 0.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/preload/clients/semantics.h"

extern char **environ;

namespace client {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20, most = 48 * MiB;

int first(const std::string &what) {
  if (use_device(0) != 0) return 1;
  CUdeviceptr block = 0;
  CLIENT_CHECK(cuMemAlloc(&block, most));
  CLIENT_CHECK(cuMemsetD8(block, 1, most));
  CLIENT_CHECK(cuCtxSynchronize());
  // Memory that it keeps cached; memory that it uses for a while, or to its end.
  if (what == "cached" || what == "mapped") CLIENT_CHECK(cuMemFree(block));
  std::fputs("ready\n", stdout);
  std::fflush(stdout);
  if (what == "waits") {
    pause(300);
    CLIENT_CHECK(cuMemFree(block));
  }
  char c = 0;
  while (::read(STDIN_FILENO, &c, 1) > 0) {
  }
  return 0;
}

int second(const std::string &what) {
  if (use_device(0) != 0) return 1;
  if (what == "mapped") {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult r = create_memory(&handle, most);
    if (r == CUDA_ERROR_NOT_SUPPORTED) return 77;
    return static_cast<int>(r);
  }
  CUdeviceptr block = 0;
  if (const CUresult r = cuMemAlloc(&block, most)) return static_cast<int>(r);
  CLIENT_CHECK(cuMemsetD8(block, 2, most));
  CLIENT_EXPECT(holds(block, most, 2));
  std::size_t free = 0, total = 0;
  CLIENT_CHECK(cuMemGetInfo(&free, &total));
  CLIENT_EXPECT(free <= total && free + most <= total);
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}

pid_t start(const char *program, const char *part, const char *what, int in, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (in >= 0) posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  if (out >= 0) posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  char *words[] = {const_cast<char *>(program), const_cast<char *>(what), const_cast<char *>(part),
                   nullptr};
  pid_t pid = -1;
  if (::posix_spawn(&pid, program, &actions, nullptr, words, environ) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int status_of(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int both(const char *program, const std::string &what) {
  int to_first[2], from_first[2];
  CLIENT_CHECK(::pipe2(to_first, O_CLOEXEC));
  CLIENT_CHECK(::pipe2(from_first, O_CLOEXEC));
  const pid_t one = start(program, "first", what.c_str(), to_first[0], from_first[1]);
  ::close(to_first[0]);
  ::close(from_first[1]);
  char c = 0;
  CLIENT_EXPECT(::read(from_first[0], &c, 1) == 1);
  if (what == "killed") ::kill(one, SIGKILL);
  const int other = status_of(start(program, "second", what.c_str(), -1, -1));
  ::close(to_first[1]);
  const int own = status_of(one);
  if (own != 0 && what != "killed") return own;
  return other;
}

}  // namespace
}  // namespace client

int main(int count, char **words) {
  const std::string what = words[1], part = count > 2 ? words[2] : "";
  if (part == "first") return client::first(what);
  if (part == "second") return client::second(what);
  return client::both(words[0], what);
}
