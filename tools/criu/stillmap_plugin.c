// CRIU's plugin stillmap_plugin.so: suspends the device memory of tasks before CRIU stops them for a dump, and resumes
// it after the dump or the restore. docs/criu.md
//
// What is done is done by the command `stillmap task`, in a process of its own. A task whose process CRIU has stopped
// answers no request, so a resume is left to a process that waits until the task runs again.
#include <criu/criu-plugin.h>
#include <criu/version.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control_sockets.h"
#include "task_command.h"

// CRIU 4.0 has hooks for it: before each process is stopped. Before, only init comes early enough.
#define HAS_PAUSE_HOOK (CRIU_VERSION_MAJOR >= 4)

#ifndef STILLMAP_COMMAND
#define STILLMAP_COMMAND "/usr/bin/stillmap"
#endif

// Of CRIU.
enum { log_error = 1, log_warning = 2, log_info = 3 };
extern void print_on_level(unsigned int level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define LOG(level, ...) print_on_level(level, "stillmap: " __VA_ARGS__)

__attribute__((visibility("default"))) extern cr_plugin_desc_t CR_PLUGIN_DESC;

enum { max_depth = 64, max_timeout = 86400, default_timeout = 60, retry_milliseconds = 200 };
static const char image_name[] = "stillmap.img";
static const char resume_log_name[] = "stillmap-resume.log";

static const char *command = STILLMAP_COMMAND;
static long timeout_seconds = default_timeout;

// A control socket whose memory this plugin has suspended: at a dump now, at a restore then.
struct suspended_task {
  pid_t pid;                    // 0: not known
  char address[address_bytes];  // as its process has it: "@name", or a path
  bool is_resumed;              // a process that resumes it has been started
};
static struct suspended_task *tasks;
static size_t task_count;

static bool add_task(pid_t pid, const char *address) {
  struct suspended_task *const more = realloc(tasks, (task_count + 1) * sizeof *tasks);
  if (more == NULL) return false;
  tasks = more;
  tasks[task_count] = (struct suspended_task){.pid = pid};
  (void)snprintf(tasks[task_count].address, address_bytes, "%s", address);
  ++task_count;
  return true;
}

// Processes in namespaces of their own may have the same address.
static struct suspended_task *find_task(pid_t pid, const char *address) {
  for (size_t i = 0; i < task_count; ++i) {
    if ((tasks[i].pid == 0 || tasks[i].pid == pid) && strcmp(tasks[i].address, address) == 0)
      return &tasks[i];
  }
  return NULL;
}

static void forget_tasks(void) {
  free(tasks);
  tasks = NULL;
  task_count = 0;
}

// ---- settings: variables of CRIU's environment

// `into` is left as it is where there is no such variable. False, and an error in the log, where its value is wrong.
static bool read_number(const char *name, const char *unit, long least, long most, long *into) {
  const char *const value = getenv(name);
  if (value == NULL || *value == '\0') return true;
  char *end = NULL;
  const long n = strtol(value, &end, 10);
  if (*end == '\0' && n >= least && n <= most) {
    *into = n;
    return true;
  }
  LOG(log_error, "%s=%s is no %s from %ld to %ld: correct or unset it\n", name, value, unit, least,
      most);
  return false;
}

static bool read_settings(void) {
  const char *const named = getenv("STILLMAP_CRIU_COMMAND");
  command = named != NULL && *named != '\0' ? named : STILLMAP_COMMAND;
  if (*command != '/') {
    LOG(log_error, "STILLMAP_CRIU_COMMAND=%s is no absolute path: correct or unset it\n", command);
    return false;
  }
  timeout_seconds = default_timeout;
  return read_number("STILLMAP_CRIU_TIMEOUT", "number of seconds", 1, max_timeout,
                     &timeout_seconds);
}

// ---- resume, beside CRIU

// Waits until the task runs again, and while the device has no room. Returns at once where a dump has ended its process.
static void resume_beside(const struct suspended_task *t, int image_folder) {
  const long until = milliseconds_now() + timeout_seconds * 1000;
  char text[text_bytes];
  for (long left; (left = until - milliseconds_now()) > 0;) {
    if (t->pid != 0 && !listens(t->pid, t->address)) return;
    if (ask_task(command, "resume", t->pid, t->address, (left + 999) / 1000, text)) return;
    (void)poll(NULL, 0, retry_milliseconds);
  }
  if (t->pid != 0 && !listens(t->pid, t->address)) return;
  // CRIU and its log may be gone.
  const int log =
      openat(image_folder, resume_log_name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dprintf(log, "%s is not resumed: %s; `stillmap task resume` brings it back\n", t->address, text);
}

static void start_resume(struct suspended_task *t) {
  t->is_resumed = true;
  const sigset_t before = block_child_signal();
  const pid_t child = fork();
  if (child == 0) {
    // A child of its own child is no child of CRIU's, which waits for all it has.
    if (fork() != 0) _exit(0);
    (void)setsid();
    reset_signals();
    const int image_folder = dup2(criu_get_image_dir(), STDERR_FILENO);
    if (image_folder >= 0) closefrom(STDERR_FILENO + 1);
    resume_beside(t, image_folder);
    _exit(0);
  }
  if (child > 0) {
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    LOG(log_info, "%s is resumed once its process runs\n", t->address);
  } else {
    LOG(log_error, "no process to resume %s: %s; `stillmap task resume` brings it back\n",
        t->address, strerror(errno));
  }
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
}

static void resume_rest(void) {
  for (size_t i = 0; i < task_count; ++i)
    if (!tasks[i].is_resumed) start_resume(&tasks[i]);
}

// ---- the image: the addresses of what was suspended, a line each

static bool write_image(void) {
  const int fd =
      openat(criu_get_image_dir(), image_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  FILE *const file = fd >= 0 ? fdopen(fd, "w") : NULL;
  bool is_whole = file != NULL;
  for (size_t i = 0; is_whole && i < task_count; ++i)
    is_whole = fprintf(file, "%s\n", tasks[i].address) > 0;
  if (file != NULL ? fclose(file) != 0 : fd >= 0 && close(fd) != 0) is_whole = false;
  if (!is_whole)
    LOG(log_error, "cannot write %s: %s: CRIU needs a folder for images with room\n", image_name,
        strerror(errno));
  return is_whole;
}

// Nothing where there is none: the dump had no task of ours, or no plugin.
static bool read_image(void) {
  const int fd = openat(criu_get_image_dir(), image_name, O_RDONLY | O_CLOEXEC);
  FILE *const file = fd >= 0 ? fdopen(fd, "r") : NULL;
  if (file == NULL) return fd < 0;
  char line[address_bytes];
  bool is_whole = true;
  while (is_whole && fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    is_whole = add_task(0, line);
  }
  (void)fclose(file);
  return is_whole;
}

// ---- dump

static bool suspend_socket(pid_t pid, const char *address, void *given) {
  (void)given;
  char text[text_bytes];
  if (find_task(pid, address) != NULL) return true;
  if (!ask_task(command, "suspend", pid, address, timeout_seconds, text)) {
    if (!listens(pid, address)) return true;  // it has ended
    LOG(log_error,
        "the device memory of process %d cannot be suspended, so it is not dumped: %s. "
        "`stillmap task status` says what it does; suspend it before the dump, or raise "
        "STILLMAP_CRIU_TIMEOUT (%ld s)\n",
        pid, text, timeout_seconds);
    return false;
  }
  // What was suspended before stays so, here and after a restore.
  if (strstr(text, "; nothing to do") != NULL) return true;
  if (!add_task(pid, address)) {
    LOG(log_error, "no memory: %s stays suspended until `stillmap task resume`\n", address);
    return false;
  }
  LOG(log_info, "%s of process %d is suspended\n", address, pid);
  return write_image();
}

static bool suspend_process(pid_t pid) {
  return for_each_socket(pid, suspend_socket, NULL);
}

static bool suspend_tree(pid_t pid, int depth);

static bool suspend_children(pid_t pid, const char *thread, int depth) {
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", pid, thread);
  FILE *const file = fopen(path, "re");
  bool is_done = true;
  for (int child; file != NULL && is_done && fscanf(file, "%d", &child) == 1;)
    is_done = suspend_tree(child, depth + 1);
  if (file != NULL) (void)fclose(file);
  return is_done;
}

static bool suspend_tree(pid_t pid, int depth) {
  char path[64];
  if (depth > max_depth) return true;
  if (!suspend_process(pid)) return false;
  (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *const folder = opendir(path);
  if (folder == NULL) return true;
  bool is_done = true;
  for (struct dirent *d; is_done && (d = readdir(folder)) != NULL;)
    if (*d->d_name != '.') is_done = suspend_children(pid, d->d_name, depth);
  (void)closedir(folder);
  return is_done;
}

// The process that `criu dump -t` or --tree names. CRIU's own variable has no part of a plugin's interface.
static pid_t tree_of_command_line(void) {
  char text[1 << 16];
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0) (void)close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  for (const char *word = text; word < text + n; word += strlen(word) + 1) {
    const char *value = NULL;
    if (strcmp(word, "-t") == 0 || strcmp(word, "--tree") == 0) {
      value = word + strlen(word) + 1;
    } else if (strncmp(word, "-t", 2) == 0) {
      value = word + 2;
    } else if (strncmp(word, "--tree=", 7) == 0) {
      value = word + 7;
    }
    if (value != NULL && value < text + n && atoi(value) > 0) return atoi(value);
  }
  return 0;
}

static int begin_dump(void) {
  long tree = 0;
  if (!read_number("STILLMAP_CRIU_TREE", "process", 1, INT_MAX, &tree)) return -1;
  if (tree == 0) tree = tree_of_command_line();
  if (tree == 0 && !HAS_PAUSE_HOOK)
    LOG(log_warning,
        "CRIU %s does not say which process it dumps: nothing is suspended. STILLMAP_CRIU_TREE "
        "names it, and `stillmap task suspend` does it before the dump\n",
        CRIU_VERSION);
  (void)unlinkat(criu_get_image_dir(), image_name, 0);
  if (tree == 0 || suspend_tree((pid_t)tree, 0)) return 0;
  resume_rest();  // CRIU calls no exit of a plugin whose init has failed
  (void)unlinkat(criu_get_image_dir(), image_name, 0);
  forget_tasks();
  return -1;
}

// ---- what CRIU calls

static int init_plugin(int stage) {
  forget_tasks();
  if (stage == CR_PLUGIN_STAGE__PRE_DUMP) return 0;
  if (!read_settings()) return -1;
  if (stage == CR_PLUGIN_STAGE__DUMP) return begin_dump();
  return stage != CR_PLUGIN_STAGE__RESTORE || read_image() ? 0 : -1;
}

// After a dump the processes are still stopped; then they end, or go on.
static void exit_plugin(int stage, int ret) {
  if (stage == CR_PLUGIN_STAGE__DUMP && ret != 0)
    (void)unlinkat(criu_get_image_dir(), image_name, 0);
  if (stage == CR_PLUGIN_STAGE__DUMP || (stage == CR_PLUGIN_STAGE__RESTORE && ret == 0))
    resume_rest();
  forget_tasks();
}

CR_PLUGIN_REGISTER("stillmap_plugin", init_plugin, exit_plugin)

// CRIU calls the hooks of further plugins, as the one for CUDA, only after -ENOTSUP: it is what all of ours return that
// have not failed.

#if HAS_PAUSE_HOOK
static int pause_devices(int pid) {
  return suspend_process(pid) ? -ENOTSUP : -1;
}
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__PAUSE_DEVICES, pause_devices)
#endif

static bool resume_socket(pid_t pid, const char *address, void *given) {
  (void)given;
  struct suspended_task *const t = find_task(pid, address);
  if (t == NULL || t->is_resumed) return true;
  t->pid = pid;
  start_resume(t);
  return true;
}

// All of the process is restored, and it is stopped still.
static int resume_devices_late(int pid) {
  if (task_count != 0) (void)for_each_socket(pid, resume_socket, NULL);
  return -ENOTSUP;
}
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__RESUME_DEVICES_LATE, resume_devices_late)
