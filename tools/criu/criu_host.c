// Plays CRIU's part for a plugin: loads it as CRIU does, and calls what lines of stdin name. For tools/check/criu.py.
//
//   criu_host PLUGIN FOLDER [-t PID]
//
// "init STAGE", "exit STAGE RETURNED" and "hook NUMBER PID" print "= RETURNED"; a hook that the plugin lacks returns 1.
#include <criu/criu-plugin.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int image_folder = -1;

// What CRIU has for plugins.
__attribute__((visibility("default"))) int criu_get_image_dir(void);
__attribute__((visibility("default"), format(printf, 2, 3))) void print_on_level(unsigned level,
                                                                                 const char *format,
                                                                                 ...);

int criu_get_image_dir(void) {
  return image_folder;
}
void print_on_level(unsigned level, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)printf("%u ", level);
  (void)vprintf(format, arguments);
  va_end(arguments);
}

static int call_hook(const cr_plugin_desc_t *plugin, unsigned hook, int pid) {
  int (*function)(int) = NULL;
  if (hook < plugin->max_hooks) memcpy(&function, &plugin->hooks[hook], sizeof function);
  return function != NULL ? function(pid) : 1;
}

static void obey(const cr_plugin_desc_t *plugin, const char *line) {
  int a = 0, b = 0, returned = 0;
  if (sscanf(line, "init %d", &a) == 1) returned = plugin->init(a);
  if (sscanf(line, "exit %d %d", &a, &b) == 2) plugin->exit(a, b);
  if (sscanf(line, "hook %d %d", &a, &b) == 2) returned = call_hook(plugin, (unsigned)a, b);
  (void)printf("= %d\n", returned);
  (void)fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  image_folder = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  void *const loaded = dlopen(argv[1], RTLD_LAZY);
  const cr_plugin_desc_t *const plugin = loaded != NULL ? dlsym(loaded, "CR_PLUGIN_DESC") : NULL;
  if (plugin == NULL || plugin->version > CRIU_PLUGIN_VERSION ||
      plugin->max_hooks > CR_PLUGIN_HOOK__MAX) {
    (void)fprintf(stderr, "criu_host: %s\n",
                  loaded == NULL ? dlerror() : "no plugin for this CRIU");
    return 1;
  }
  char line[256];
  while (fgets(line, sizeof line, stdin) != NULL) obey(plugin, line);
  return 0;
}
