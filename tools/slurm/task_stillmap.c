// Slurm's task plugin task/stillmap: suspends the device memory of a job before slurmd stops its processes, and resumes
// it after they continue. docs/slurm.md
//
// slurmd calls these functions with the lock of its task plugins, on the thread of the request. What is done is done by
// the command `stillmap slurm`, in a process of its own.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PLUGIN_SYMBOL __attribute__((visibility("default")))

PLUGIN_SYMBOL extern const char plugin_name[];
PLUGIN_SYMBOL extern const char plugin_type[];
PLUGIN_SYMBOL extern const uint32_t plugin_version;
const char plugin_name[] = "device memory of jobs, by Stillmap";
const char plugin_type[] = "task/stillmap";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

// Of slurmd.
extern void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern char **environ;

#ifndef STILLMAP_COMMAND
#define STILLMAP_COMMAND "/usr/bin/stillmap"
#endif

enum { path_bytes = 4096, max_timeout = 86400, end_grace = 10 };

struct settings {
  char command[path_bytes];
  char lock_file[path_bytes];
  long suspend_timeout;  // seconds
  long resume_timeout;   // seconds; 0: none
};

struct request {
  const char *name;  // "suspend"
  uint32_t job;
  long timeout;  // seconds; 0: none
  struct settings settings;
};

// ---- stillmap.conf, beside slurm.conf

static void set_path(char *into, const char *value, const char *name) {
  if (*value == '/' && strlen(value) < path_bytes) {
    strcpy(into, value);
  } else {
    slurm_error("stillmap.conf: %s=%s is no absolute path", name, value);
  }
}

static void set_seconds(long *into, const char *value, const char *name, long least) {
  char *end = NULL;
  const long n = strtol(value, &end, 10);
  if (end != value && *end == '\0' && n >= least && n <= max_timeout) {
    *into = n;
  } else {
    slurm_error("stillmap.conf: %s=%s is no number of seconds from %ld to %d", name, value, least,
                max_timeout);
  }
}

static void read_line(char *line, struct settings *into) {
  line[strcspn(line, "#\r\n")] = '\0';
  char *const name = line + strspn(line, " \t");
  for (size_t n = strlen(name); n != 0 && (name[n - 1] == ' ' || name[n - 1] == '\t'); --n)
    name[n - 1] = '\0';
  if (*name == '\0') return;
  char *const equals = strchr(name, '=');
  if (equals != NULL) *equals = '\0';
  const char *const value = equals != NULL ? equals + 1 : "";
  if (strcasecmp(name, "Command") == 0) {
    set_path(into->command, value, name);
  } else if (strcasecmp(name, "LockFile") == 0) {
    set_path(into->lock_file, value, name);
  } else if (strcasecmp(name, "SuspendTimeout") == 0) {
    set_seconds(&into->suspend_timeout, value, name, 1);
  } else if (strcasecmp(name, "ResumeTimeout") == 0) {
    set_seconds(&into->resume_timeout, value, name, 0);
  } else {
    slurm_error("stillmap.conf: there is no %s", name);
  }
}

// At each request, so that changes need no restart. What is wrong in it is logged, and the default holds.
static struct settings read_settings(void) {
  struct settings out = {STILLMAP_COMMAND, "/run/stillmap-slurm.lock", 60, 0};
  // slurmd sets it, also where slurm.conf comes from the controller.
  const char *const conf = getenv("SLURM_CONF");
  const char *const slash = conf != NULL ? strrchr(conf, '/') : NULL;
  char path[path_bytes];
  const int n = slash != NULL
                    ? snprintf(path, sizeof path, "%.*s/stillmap.conf", (int)(slash - conf), conf)
                    : snprintf(path, sizeof path, "/etc/slurm/stillmap.conf");
  FILE *const file = n < path_bytes ? fopen(path, "re") : NULL;
  if (file == NULL) return out;
  char line[path_bytes];
  while (fgets(line, sizeof line, file) != NULL) read_line(line, &out);
  (void)fclose(file);
  return out;
}

// ---- the command

static int set_actions(posix_spawn_file_actions_t *actions, int output) {
  int failed = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", 0, 0);
  if (failed == 0) failed = posix_spawn_file_actions_adddup2(actions, output, STDOUT_FILENO);
  if (failed == 0) failed = posix_spawn_file_actions_adddup2(actions, output, STDERR_FILENO);
  // slurmd's sockets and files.
  if (failed == 0) failed = posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
  return failed;
}

// In a session of its own, so that what ends slurmd's process group does not end a resume.
static int set_attributes(posix_spawnattr_t *attributes) {
  sigset_t none, all;
  (void)sigemptyset(&none);
  (void)sigfillset(&all);
  int failed = posix_spawnattr_setsigmask(attributes, &none);
  if (failed == 0) failed = posix_spawnattr_setsigdefault(attributes, &all);
  if (failed == 0)
    failed = posix_spawnattr_setflags(
        attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  return failed;
}

// Returns an error number.
static int start_command(const struct request *r, int output, pid_t *pid) {
  char job[16], timeout[16];
  (void)snprintf(job, sizeof job, "%u", r->job);
  (void)snprintf(timeout, sizeof timeout, "%ld", r->timeout);
  const char *const words[] = {
      r->settings.command,   "slurm", r->name, job, "--timeout", timeout, "--lock-file",
      r->settings.lock_file, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  int failed = posix_spawn_file_actions_init(&actions);
  if (failed != 0) return failed;
  failed = posix_spawnattr_init(&attributes);
  if (failed == 0) {
    failed = set_actions(&actions, output);
    if (failed == 0) failed = set_attributes(&attributes);
    if (failed == 0)
      failed = posix_spawn(pid, r->settings.command, &actions, &attributes, (char *const *)words,
                           environ);
    (void)posix_spawnattr_destroy(&attributes);
  }
  (void)posix_spawn_file_actions_destroy(&actions);
  return failed;
}

static long milliseconds_now(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

// Reads what the command prints until it has closed its output, or `until` (-1: never). What has no room is dropped.
// Returns whether it has closed it.
static bool read_output(int from, char *text, size_t room, long until) {
  size_t used = 0;
  bool ended = false;
  while (!ended) {
    const long left = until < 0 ? -1 : until - milliseconds_now();
    if (until >= 0 && left <= 0) break;
    struct pollfd wait_for = {.fd = from, .events = POLLIN};
    const int ready = poll(&wait_for, 1, (int)left);
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0) continue;
    char piece[256];
    const ssize_t n = read(from, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    ended = n <= 0;
    const size_t taken = n <= 0 ? 0 : (size_t)n < room - used - 1 ? (size_t)n : room - used - 1;
    memcpy(text + used, piece, taken);
    used += taken;
  }
  while (used != 0 && text[used - 1] == '\n') --used;
  text[used] = '\0';
  return ended;
}

// Starts `stillmap slurm`. Returns whether it runs: as `pid`, and with its output in `from`.
static bool begin_command(const struct request *r, pid_t *pid, int *from) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    slurm_error("stillmap: job %u: no pipe: %s", r->job, strerror(errno));
    return false;
  }
  const int failed = start_command(r, ends[1], pid);
  (void)close(ends[1]);
  *from = ends[0];
  if (failed == 0) return true;
  slurm_error("stillmap: job %u: cannot start %s: %s; its device memory is left as it is", r->job,
              r->settings.command, strerror(failed));
  (void)close(ends[0]);
  return false;
}

struct running_command {
  struct request request;
  pid_t pid;
  int from;
  struct running_command *next;
};
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
// Commands that slurmd does not wait for. Guarded by running_lock, and so is the end of each: until it is reaped, its id
// is no other process's.
static struct running_command *running;

static void forget_command(pid_t pid) {
  struct running_command **at = &running;
  while (*at != NULL && (*at)->pid != pid) at = &(*at)->next;
  if (*at != NULL) *at = (*at)->next;
}

// Returns its status.
static int reap_command(pid_t pid) {
  siginfo_t info;
  while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  int status = 0;
  (void)pthread_mutex_lock(&running_lock);
  forget_command(pid);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  (void)pthread_mutex_unlock(&running_lock);
  return status;
}

// Waits for it, and logs what it says. What it has begun within its timeout it may undo for as long again: it is not
// waited for much longer.
static void end_command(const struct request *r, pid_t pid, int from) {
  char text[1024];
  const long until =
      r->timeout == 0 ? -1 : milliseconds_now() + (2 * r->timeout + end_grace) * 1000;
  const bool ended = read_output(from, text, sizeof text, until);
  (void)close(from);
  if (!ended) (void)kill(-pid, SIGKILL);
  const int status = reap_command(pid);
  if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    slurm_info("%s", text);
  } else if (ended && WIFSIGNALED(status)) {
    // A suspend ends the resume before it.
    slurm_info("stillmap: %s of job %u ended by signal %d", r->name, r->job, WTERMSIG(status));
  } else {
    slurm_error("stillmap: %s of job %u failed: %s", r->name, r->job,
                ended ? text : "the command did not end");
  }
}

static void run_command(const struct request *r) {
  pid_t pid = -1;
  int from = -1;
  if (begin_command(r, &pid, &from)) end_command(r, pid, from);
}

// ---- commands that slurmd does not wait for

static void *run_beside(void *given) {
  struct running_command *const c = given;
  end_command(&c->request, c->pid, c->from);
  free(c);
  return NULL;
}

// It runs once this returns. If slurmd ends, it goes on.
static void start_beside(const struct request *r) {
  struct running_command *const c = malloc(sizeof *c);
  if (c == NULL) {
    slurm_error("stillmap: job %u: no memory for its %s", r->job, r->name);
    return;
  }
  *c = (struct running_command){.request = *r};
  if (!begin_command(&c->request, &c->pid, &c->from)) {
    free(c);
    return;
  }
  pthread_t thread;
  pthread_attr_t attributes;
  (void)pthread_mutex_lock(&running_lock);
  int failed = pthread_attr_init(&attributes);
  if (failed == 0) {
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &attributes, run_beside, c);
    (void)pthread_attr_destroy(&attributes);
  }
  if (failed == 0) {
    c->next = running;
    running = c;
  }
  (void)pthread_mutex_unlock(&running_lock);
  if (failed == 0) return;
  slurm_error("stillmap: job %u: no thread for its %s: %s; it is waited for", r->job, r->name,
              strerror(failed));
  end_command(&c->request, c->pid, c->from);
  free(c);
}

// Also of one that has not got as far as its lock.
static void end_commands_of(uint32_t job) {
  (void)pthread_mutex_lock(&running_lock);
  for (const struct running_command *c = running; c != NULL; c = c->next) {
    if (c->request.job == job) (void)kill(-c->pid, SIGKILL);
  }
  (void)pthread_mutex_unlock(&running_lock);
}

// ---- suspends of this node, for programs that start meanwhile

// `stillmap slurm` locks the bytes below, at the ids of jobs.
static const off_t suspend_locks = (off_t)1 << 32;

static struct flock lock_of(short type, off_t start, off_t bytes) {
  struct flock out;
  memset(&out, 0, sizeof out);
  out.l_type = type;
  out.l_whence = SEEK_SET;
  out.l_start = suspend_locks + start;
  out.l_len = bytes;
  return out;
}

// Held while slurmd suspends the job, and dropped if it ends. -1: there is none, and nobody waits for it.
static int lock_suspend(const struct request *r) {
  const int fd = open(r->settings.lock_file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  struct flock wanted = lock_of(F_WRLCK, r->job, 1);
  if (fd < 0 || fcntl(fd, F_OFD_SETLK, &wanted) != 0)
    slurm_error("stillmap: cannot lock %s: %s", r->settings.lock_file, strerror(errno));
  return fd;
}

static bool is_suspending(int fd) {
  struct flock any = lock_of(F_RDLCK, 0, suspend_locks);
  return fcntl(fd, F_OFD_GETLK, &any) == 0 && any.l_type != F_UNLCK;
}

// Whoever preempts a job may start before it is suspended, and would not find its memory.
static void wait_for_suspends(void) {
  const struct settings settings = read_settings();
  const int fd = open(settings.lock_file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;  // nothing has been suspended yet
  const long until = milliseconds_now() + (2 * settings.suspend_timeout + end_grace) * 1000;
  const struct timespec interval = {.tv_nsec = 10000000};
  while (is_suspending(fd) && milliseconds_now() < until) (void)nanosleep(&interval, NULL);
  (void)close(fd);
}

// ---- what slurmd and slurmstepd call

PLUGIN_SYMBOL int init(void) {
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int fini(void) {
  return SLURM_SUCCESS;
}

// Before SIGTSTP and SIGSTOP. Whatever it returns, slurmd stops the processes.
PLUGIN_SYMBOL int task_p_slurmd_suspend_job(uint32_t job) {
  struct request r = {.name = "suspend", .job = job, .settings = read_settings()};
  r.timeout = r.settings.suspend_timeout;
  const int lock = lock_suspend(&r);
  end_commands_of(job);
  run_command(&r);
  if (lock >= 0) (void)close(lock);
  return SLURM_SUCCESS;
}

// After SIGCONT.
PLUGIN_SYMBOL int task_p_slurmd_resume_job(uint32_t job) {
  struct request r = {.name = "resume", .job = job, .settings = read_settings()};
  r.timeout = r.settings.resume_timeout;
  start_beside(&r);
  return SLURM_SUCCESS;
}

// In slurmstepd, as root, before the processes of a step or a batch script.
PLUGIN_SYMBOL int task_p_pre_setuid(void *step) {
  (void)step;
  wait_for_suspends();
  return SLURM_SUCCESS;
}

// The rest of the interface, which every plugin has. Slurm's types are not needed for it.

PLUGIN_SYMBOL int task_p_slurmd_batch_request(void *request) {
  (void)request;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_slurmd_launch_request(void *request, uint32_t node, char **error) {
  (void)request;
  (void)node;
  (void)error;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_pre_launch(void *step) {
  (void)step;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_post_term(void *step, void *task) {
  (void)step;
  (void)task;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_post_step(void *step) {
  (void)step;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_add_pid(pid_t pid) {
  (void)pid;
  return SLURM_SUCCESS;
}

// Until Slurm 22.05.
PLUGIN_SYMBOL int task_p_pre_set_affinity(void *step, uint32_t node_task) {
  (void)step;
  (void)node_task;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_set_affinity(void *step, uint32_t node_task) {
  (void)step;
  (void)node_task;
  return SLURM_SUCCESS;
}
PLUGIN_SYMBOL int task_p_post_set_affinity(void *step, uint32_t node_task) {
  (void)step;
  (void)node_task;
  return SLURM_SUCCESS;
}
// Since Slurm 23.02.
PLUGIN_SYMBOL int task_p_pre_launch_priv(void *step, uint32_t node_task, uint32_t global_task) {
  (void)step;
  (void)node_task;
  (void)global_task;
  return SLURM_SUCCESS;
}
