// A buffer that grows in place, blocks of a caching allocator, and memory that is suspended and resumed, in C11.
//   cc -std=c11 examples/c_api.c $(pkg-config --cflags --libs stillmap-c) -o c_api
// docs/c_api.md quotes the region [grow].
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stillmap/c_api.h"

// Ends the program with the reason of a failure. A library would return the status instead.
static void must(stillmap_status status) {
  if (status == STILLMAP_OK) return;
  stillmap_error e = {.struct_size = sizeof e};
  stillmap_error_last(&e);
  fprintf(stderr, "%s\nadvice: %s\n", e.message, e.advice);
  exit(1);
}

static void check(int holds, const char *claim) {
  if (!holds) {
    fprintf(stderr, "check failed: %s\n", claim);
    exit(1);
  }
  printf("ok: %s\n", claim);
}

// [grow]
static stillmap_buffer *grow(stillmap_device *gpu, size_t page) {
  stillmap_buffer_options options = {
      .struct_size = sizeof options, .reserve_bytes = 64 * page, .tag = "cache"};
  stillmap_buffer *cache = NULL;
  must(stillmap_buffer_create(gpu, &options, &cache));
  must(stillmap_buffer_resize(cache, page));
  must(stillmap_buffer_copy_from_host(cache, 0, "contents", 9, NULL));
  void *const before = stillmap_buffer_address(cache);
  must(stillmap_buffer_resize(cache, 32 * page));  // maps pages, copies nothing
  stillmap_buffer_info info = {.struct_size = sizeof info};
  must(stillmap_buffer_get_info(cache, &info));
  check(!info.in_place || info.address == before, "the address stays");
  return cache;
}
// [/grow]

static void allocate(stillmap_device *gpu) {
  stillmap_allocator *allocator = NULL;
  must(stillmap_allocator_create(gpu, NULL, &allocator));
  void *block = NULL;
  must(stillmap_allocator_allocate(allocator, 1 << 20, NULL, NULL, &block));
  must(stillmap_allocator_free(allocator, block));
  check(stillmap_allocator_free(allocator, block) == STILLMAP_INVALID_ARGUMENT,
        "a block that was freed already is refused");
  stillmap_error e = {.struct_size = sizeof e};
  must(stillmap_error_last(&e));
  printf("    %s\n", e.message);
  must(stillmap_allocator_destroy(allocator));
}

static void suspend(stillmap_device *gpu, stillmap_buffer *cache) {
  stillmap_suspender *suspender = NULL;
  stillmap_suspended done = {.struct_size = sizeof done};
  char back[16] = "";
  must(stillmap_suspender_create(gpu, NULL, &suspender));
  must(stillmap_suspender_suspend(suspender, "cache", NULL, &done));
  check(done.released_bytes > 0, "suspended: the device has its memory back");
  must(stillmap_suspender_resume(suspender, "cache", NULL));
  must(stillmap_buffer_copy_to_host(cache, 0, back, 9, NULL));
  check(strcmp(back, "contents") == 0, "resumed: the same contents at the same address");
  must(stillmap_suspender_destroy(suspender));
}

int main(void) {
  check(stillmap_api_version() >= STILLMAP_C_API_VERSION, "the library has what the header says");
  stillmap_device *gpu = NULL;
  must(stillmap_device_open(0, &gpu));
  stillmap_device_info info = {.struct_size = sizeof info};
  must(stillmap_device_get_info(gpu, &info));
  printf("%s, Stillmap %s\n", info.name, stillmap_version());
  stillmap_buffer *cache = grow(gpu, (size_t)info.page_bytes);
  allocate(gpu);
  if (info.vmm) suspend(gpu, cache);
  must(stillmap_buffer_destroy(cache));
  must(stillmap_device_close(gpu));
  return 0;
}
