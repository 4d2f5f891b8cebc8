#include "task_command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control_sockets.h"

enum { end_grace = 10 };  // seconds

long milliseconds_now(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

sigset_t block_child_signal(void) {
  sigset_t child, before;
  (void)sigemptyset(&child);
  (void)sigaddset(&child, SIGCHLD);
  (void)sigprocmask(SIG_BLOCK, &child, &before);
  return before;
}

void reset_signals(void) {
  sigset_t none;
  for (int s = 1; s < NSIG; ++s) (void)signal(s, SIG_DFL);
  (void)sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

// Abstract sockets are those of a network namespace.
static void enter_network_of(pid_t pid) {
  char path[64];
  struct stat here, there;
  (void)snprintf(path, sizeof path, "/proc/%d/ns/net", pid);
  if (pid == 0 || stat("/proc/self/ns/net", &here) != 0 || stat(path, &there) != 0 ||
      here.st_ino == there.st_ino)
    return;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
    dprintf(STDERR_FILENO, "cannot enter %s: %s\n", path, strerror(errno));
}

static void become_command(pid_t pid, const char *const *words, int output) {
  (void)setsid();
  reset_signals();
  const int null = open("/dev/null", O_RDONLY);
  if (dup2(null, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
      dup2(output, STDERR_FILENO) < 0)
    _exit(127);
  if (*words[3] == '@') enter_network_of(pid);
  closefrom(STDERR_FILENO + 1);
  (void)execv(words[0], (char *const *)(uintptr_t)words);
  dprintf(STDERR_FILENO, "cannot start %s: %s; STILLMAP_CRIU_COMMAND names another", words[0],
          strerror(errno));
  _exit(127);
}

// Reads until the output is closed or `until`. What has no room is dropped. Returns whether it was closed.
static bool read_output(int from, char *text, long until) {
  size_t used = 0;
  bool ended = false;
  for (long left; !ended && (left = until - milliseconds_now()) > 0;) {
    struct pollfd wait_for = {.fd = from, .events = POLLIN};
    if (poll(&wait_for, 1, (int)left) <= 0) continue;
    char piece[256];
    const ssize_t n = read(from, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    ended = n <= 0;
    const size_t room = text_bytes - 1 - used;
    const size_t taken = n <= 0 ? 0 : (size_t)n < room ? (size_t)n : room;
    memcpy(text + used, piece, taken);
    used += taken;
  }
  while (used != 0 && text[used - 1] == '\n') --used;
  text[used] = '\0';
  return ended;
}

bool ask_task(const char *command, const char *what, pid_t pid, const char *address, long seconds,
              char *text) {
  char place[address_bytes + 32], within[16];
  // A path is that of the process's mount namespace.
  if (*address == '/' && pid != 0) {
    (void)snprintf(place, sizeof place, "/proc/%d/root%s", pid, address);
  } else {
    (void)snprintf(place, sizeof place, "%s", address);
  }
  (void)snprintf(within, sizeof within, "%ld", seconds);
  const char *const words[] = {command,  "task",     what,   place, "--all",
                               "--each", "--within", within, NULL};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    (void)snprintf(text, text_bytes, "no pipe: %s", strerror(errno));
    return false;
  }
  const sigset_t before = block_child_signal();
  const pid_t child = fork();
  if (child == 0) become_command(pid, words, ends[1]);
  (void)close(ends[1]);
  bool ended = false;
  int status = -1;
  if (child < 0) {
    (void)snprintf(text, text_bytes, "no process: %s", strerror(errno));
  } else {
    // What it has begun it may undo for as long again.
    ended = read_output(ends[0], text, milliseconds_now() + (2 * seconds + end_grace) * 1000);
    if (!ended) {
      (void)kill(-child, SIGKILL);
      (void)snprintf(text, text_bytes, "%s did not end", command);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  (void)close(ends[0]);
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
  return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
