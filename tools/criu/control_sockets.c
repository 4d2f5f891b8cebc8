#include "control_sockets.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool has_descriptor(pid_t pid, unsigned long inode) {
  char path[64], wanted[64], found[64];
  (void)snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
  (void)snprintf(path, sizeof path, "/proc/%d/fd", pid);
  DIR *const folder = opendir(path);
  if (folder == NULL) return false;
  bool is_there = false;
  for (struct dirent *d; !is_there && (d = readdir(folder)) != NULL;) {
    const ssize_t n = readlinkat(dirfd(folder), d->d_name, found, sizeof found - 1);
    found[n < 0 ? 0 : n] = '\0';
    is_there = strcmp(found, wanted) == 0;
  }
  (void)closedir(folder);
  return is_there;
}

// A line of /proc/net/unix: a stream socket that listens, with the name of a control socket.
static bool read_socket(char *line, unsigned long *inode, const char **address) {
  unsigned flags = 0, type = 0;
  int name_at = 0;
  line[strcspn(line, "\n")] = '\0';
  if (sscanf(line, "%*s %*x %*x %x %x %*x %lu %n", &flags, &type, inode, &name_at) != 3 ||
      name_at == 0 || (flags & 0x10000) == 0 || type != SOCK_STREAM)
    return false;
  *address = line + name_at;
  const size_t length = strlen(*address);
  static const char ending[] = "control";
  return (**address == '@' || **address == '/') && length < address_bytes &&
         length > sizeof ending && strcmp(*address + length - (sizeof ending - 1), ending) == 0;
}

bool for_each_socket(pid_t pid, bool (*visit)(pid_t, const char *, void *), void *given) {
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%d/net/unix", pid);  // of its network namespace
  FILE *const file = fopen(path, "re");
  if (file == NULL) return true;
  char *line = NULL;
  size_t room = 0;
  bool goes_on = true;
  while (goes_on && getline(&line, &room, file) > 0) {
    unsigned long inode = 0;
    const char *address = NULL;
    if (read_socket(line, &inode, &address) && has_descriptor(pid, inode))
      goes_on = visit(pid, address, given);
  }
  free(line);
  (void)fclose(file);
  return goes_on;
}

static bool is_other_address(pid_t pid, const char *address, void *wanted) {
  (void)pid;
  return strcmp(address, wanted) != 0;
}
bool listens(pid_t pid, const char *address) {
  return !for_each_socket(pid, is_other_address, (void *)(uintptr_t)address);
}
