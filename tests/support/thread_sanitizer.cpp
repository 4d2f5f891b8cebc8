// Suppressions of ThreadSanitizer for every test program.

#if defined(__SANITIZE_THREAD__)

// glibc frees the thread_locals of a library loaded by dlopen when it reuses the thread's stack. It
// orders this by a lock that the sanitizer does not see. (Reported in 1 of 200 runs of the race tests,
// for hostcuda's recent_walks.)
//
// liburing maps and unmaps its rings by system calls that the sanitizer does not see, so that a new ring at
// the address of one that has ended looks like the old one, used by two threads. A queue of writes that is
// really used by two would race in its own members too.
extern "C" const char *__tsan_default_suppressions() {
  return "race:_dl_deallocate_tls\nrace:io_uring_\n";
}

#endif
