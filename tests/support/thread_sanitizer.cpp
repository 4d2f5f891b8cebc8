// Suppressions of ThreadSanitizer for every test program.

#if defined(__SANITIZE_THREAD__)

// glibc frees the thread_locals of a library loaded by dlopen when it reuses the thread's stack. It
// orders this by a lock that the sanitizer does not see. (Reported in 1 of 200 runs of the race tests,
// for hostcuda's recent_walks.)
extern "C" const char *__tsan_default_suppressions() {
  return "race:_dl_deallocate_tls\n";
}

#endif
