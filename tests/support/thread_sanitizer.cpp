// What ThreadSanitizer is told to overlook, in every test program.

#if defined(__SANITIZE_THREAD__)

// A thread's thread_locals in a library that was loaded late are freed by whoever makes the next
// thread on its stack, with a lock of glibc's loader between the two that the sanitizer does not
// see. (Found in 1 of 200 runs of the race tests: hostcuda's recent_walks.)
extern "C" const char *__tsan_default_suppressions() {
  return "race:_dl_deallocate_tls\n";
}

#endif
