// SPANK plugin: srun, sbatch and salloc get options that start the programs of a job on Stillmap's memory, as
// `stillmap run --control` does. docs/slurm.md
#include <ctype.h>
#include <limits.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PLUGIN_SYMBOL __attribute__((visibility("default")))

PLUGIN_SYMBOL extern const char plugin_name[];
PLUGIN_SYMBOL extern const char plugin_type[];
PLUGIN_SYMBOL extern const unsigned int plugin_version;
PLUGIN_SYMBOL extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(stillmap, 1)

#ifndef STILLMAP_LIBRARY
#define STILLMAP_LIBRARY "/usr/lib/libstillmap_preload.so"
#endif

enum { value_bytes = 4096 };

// What plugstack.conf says, then what the job asks for.
static struct {
  bool on;         // the programs run on Stillmap's memory
  bool asked_for;  // the job has said so
  bool refused;    // it has said that they do not
  char library[value_bytes];
  char share[value_bytes];
  uint64_t limit, minimum;  // bytes; 0: none
  int priority;
} job = {.library = STILLMAP_LIBRARY};

// ---- values: each function returns whether it is one, and says what is wrong otherwise

// "20GiB", "512M", "4096": of 1024.
static bool parse_size(const char *name, const char *text, uint64_t *into) {
  static const char units[] = "bkmgt";
  char *end = NULL;
  const unsigned long long n = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
  unsigned shift = 0;
  bool right = end != NULL && n != 0 && n != ULLONG_MAX;
  if (right && *end != '\0') {
    const char *const unit = strchr(units, tolower((unsigned char)*end));
    right = unit != NULL && (end[1] == '\0' || (unit != units && (strcasecmp(end + 1, "b") == 0 ||
                                                                  strcasecmp(end + 1, "ib") == 0)));
    if (right) shift = 10 * (unsigned)(unit - units);
  }
  right = right && n <= (UINT64_C(1) << 62 >> shift);
  if (right) {
    *into = (uint64_t)n << shift;
  } else {
    slurm_error("%s: '%s' is not a size: write a number and a unit, such as 20GiB or 512M", name,
                text);
  }
  return right;
}

static bool parse_priority(const char *name, const char *text, int *into) {
  char *end = NULL;
  const long n = strtol(text, &end, 10);
  const bool right = end != text && *end == '\0' && n >= INT_MIN && n <= INT_MAX;
  if (right) {
    *into = (int)n;
  } else {
    slurm_error("%s: '%s' is not a whole number", name, text);
  }
  return right;
}

// "gpu0", "gpu0:60GiB": the limit becomes one in bytes, as the preload reads it.
static bool parse_quota(const char *name, const char *text, char *into) {
  const char *const colon = strrchr(text, ':');
  const size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
  uint64_t limit = 0;
  if (length == 0 || length > value_bytes - 32) {
    slurm_error("%s: '%s' names no quota: write QUOTA or QUOTA:LIMIT, such as gpu0:60GiB", name,
                text);
    return false;
  }
  if (colon != NULL && !parse_size(name, colon + 1, &limit)) return false;
  const char *const format = colon != NULL ? "%.*s:%llu" : "%.*s";
  (void)snprintf(into, value_bytes, format, (int)length, text, (unsigned long long)limit);
  return true;
}

// ---- options

enum option_id {
  option_on,
  option_off,
  option_limit,
  option_share,
  option_priority,
  option_minimum
};

static int take_option(int id, const char *text, int remote) {
  (void)remote;
  const char *const value = text != NULL ? text : "";
  bool right = true;
  switch ((enum option_id)id) {
    case option_on:
      break;
    case option_off:
      job.refused = true;
      return 0;
    case option_limit:
      right = parse_size("--stillmap-limit", value, &job.limit);
      break;
    case option_share:
      right = parse_quota("--stillmap-share", value, job.share);
      break;
    case option_priority:
      right = parse_priority("--stillmap-priority", value, &job.priority);
      break;
    case option_minimum:
      right = parse_size("--stillmap-minimum", value, &job.minimum);
      break;
  }
  if (!right) return -1;
  job.on = job.asked_for = true;
  return 0;
}

static struct spank_option options[] = {
    {"stillmap", NULL,
     "run the programs of the job on Stillmap's memory, which is suspended and resumed with the "
     "job",
     0, option_on, take_option},
    {"no-stillmap", NULL, "do not, where that is the default", 0, option_off, take_option},
    {"stillmap-limit", "SIZE", "the most device memory of each program, such as 20GiB", 1,
     option_limit, take_option},
    {"stillmap-share", "QUOTA[:LIMIT]", "take part in a shared quota of the device", 1,
     option_share, take_option},
    {"stillmap-priority", "N", "with a share: served before those of lower priority", 1,
     option_priority, take_option},
    {"stillmap-minimum", "SIZE", "with a share: what each program gets whatever others hold", 1,
     option_minimum, take_option},
};

// Of plugstack.conf: "required stillmap.so default=on library=/path limit=20GiB share=gpu0".
static bool take_argument(const char *text) {
  const char *const equals = strchr(text, '=');
  const size_t length = equals != NULL ? (size_t)(equals - text) : 0;
  const char *const value = equals != NULL ? equals + 1 : "";
  if (strncmp(text, "default", length) == 0 && length == 7) {
    job.on = strcmp(value, "on") == 0;
    if (job.on || strcmp(value, "off") == 0) return true;
  } else if (strncmp(text, "library", length) == 0 && length == 7) {
    if (*value == '/' && strlen(value) < value_bytes) {
      strcpy(job.library, value);
      return true;
    }
  } else if (strncmp(text, "limit", length) == 0 && length == 5) {
    return parse_size("limit", value, &job.limit);
  } else if (strncmp(text, "share", length) == 0 && length == 5) {
    return parse_quota("share", value, job.share);
  }
  slurm_error(
      "stillmap.so: plugstack.conf: '%s' is none of default=on|off, library=/PATH, "
      "limit=SIZE, share=QUOTA[:LIMIT]",
      text);
  return false;
}

PLUGIN_SYMBOL int slurm_spank_init(spank_t spank, int count, char *arguments[]) {
  for (int i = 0; i < count; ++i) {
    if (!take_argument(arguments[i])) return -1;
  }
  const spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) return 0;
  for (size_t i = 0; i < sizeof options / sizeof *options; ++i) {
    if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}

PLUGIN_SYMBOL int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[]) {
  (void)spank;
  (void)count;
  (void)arguments;
  if (job.refused || job.share[0] != '\0' || (job.priority == 0 && job.minimum == 0)) return 0;
  slurm_error(
      "--stillmap-priority and --stillmap-minimum are terms of a quota: they go with "
      "--stillmap-share");
  return -1;
}

// ---- the environment of a task

static bool set(spank_t spank, const char *name, const char *value) {
  if (spank_setenv(spank, name, value, 1) == ESPANK_SUCCESS) return true;
  slurm_error("stillmap: cannot set %s", name);
  return false;
}

static bool set_number(spank_t spank, const char *name, long long value) {
  char text[32];
  (void)snprintf(text, sizeof text, "%lld", value);
  return set(spank, name, text);
}

// Where `path` is as a whole in the list; NULL: nowhere.
static const char *find_in(const char *list, const char *path) {
  const size_t length = strlen(path);
  for (const char *at = strstr(list, path); at != NULL; at = strstr(at + 1, path)) {
    const bool begins = at == list || at[-1] == ':' || at[-1] == ' ';
    const char behind = at[length];
    if (begins && (behind == '\0' || behind == ':' || behind == ' ')) return at;
  }
  return NULL;
}

// What is there already is loaded behind ours, which asks it first. A step of a batch script has it from the script.
static bool preload(spank_t spank) {
  char others[value_bytes] = "";
  const spank_err_t read = spank_getenv(spank, "LD_PRELOAD", others, sizeof others);
  if (read == ESPANK_NOSPACE) {
    slurm_error("stillmap: LD_PRELOAD has more than %d bytes", value_bytes);
    return false;
  }
  if (read != ESPANK_SUCCESS) others[0] = '\0';
  if (find_in(others, job.library) != NULL) return true;
  char all[2 * value_bytes];
  (void)snprintf(all, sizeof all, "%s%s%s", job.library, others[0] != '\0' ? ":" : "", others);
  return set(spank, "LD_PRELOAD", all);
}

// What a step has from a batch script that runs on Stillmap's memory.
static bool take_back(spank_t spank) {
  static const char *const names[] = {"STILLMAP_PRELOAD_CONTROL", "STILLMAP_PRELOAD_LIMIT",
                                      "STILLMAP_PRELOAD_SHARE", "STILLMAP_PRELOAD_PRIORITY",
                                      "STILLMAP_PRELOAD_MINIMUM"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) (void)spank_unsetenv(spank, names[i]);
  char all[value_bytes] = "";
  if (spank_getenv(spank, "LD_PRELOAD", all, sizeof all) != ESPANK_SUCCESS) return true;
  const char *const found = find_in(all, job.library);
  if (found == NULL) return true;
  char *const at = all + (found - all);
  const size_t length = strlen(job.library);
  const char *const behind = at + length + (at[length] != '\0' ? 1 : 0);
  memmove(at, behind, strlen(behind) + 1);
  return set(spank, "LD_PRELOAD", all);
}

PLUGIN_SYMBOL int slurm_spank_task_init(spank_t spank, int count, char *arguments[]) {
  (void)count;
  (void)arguments;
  if (job.refused) return take_back(spank) ? 0 : -1;
  if (!job.on) return 0;
  if (access(job.library, R_OK) != 0) {
    // A job that only has the default runs without, and is not told.
    if (!job.asked_for) {
      slurm_info("stillmap: %s cannot be read on this node", job.library);
      return 0;
    }
    slurm_error("stillmap: %s cannot be read on this node", job.library);
    return -1;
  }
  bool right = preload(spank) && set(spank, "STILLMAP_PRELOAD_CONTROL", "1");
  if (right && job.limit != 0)
    right = set_number(spank, "STILLMAP_PRELOAD_LIMIT", (long long)job.limit);
  if (right && job.share[0] != '\0') {
    right = set(spank, "STILLMAP_PRELOAD_SHARE", job.share) &&
            set_number(spank, "STILLMAP_PRELOAD_PRIORITY", job.priority) &&
            set_number(spank, "STILLMAP_PRELOAD_MINIMUM", (long long)job.minimum);
  }
  return right ? 0 : -1;
}
