#include "tests/c_api/every_function.h"

#include <stdio.h>
#include <string.h>

// Returns the line from the function that uses it.
#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      snprintf(t->report, t->room, "line %d: %s: %s", __LINE__, #condition, \
               stillmap_error_message());                                   \
      return __LINE__;                                                      \
    }                                                                       \
  } while (0)
#define DONE(call) CHECK((call) == STILLMAP_OK)
// What needs a device that maps pages is refused by others.
#define DONE_WHERE_MAPPED(call) CHECK((call) == (t->vmm ? STILLMAP_OK : STILLMAP_NOT_SUPPORTED))
#define TRY(part)                   \
  do {                              \
    const int wrong_ = (part);      \
    if (wrong_ != 0) return wrong_; \
  } while (0)

struct task {
  stillmap_stream stream;
  const char *folder, *name;
  char *report;
  size_t room;
  stillmap_device *device;
  int vmm;
  size_t page;
  int events, out_of_memory, progress, background;
};

static int on_event(const stillmap_allocator_event *event, void *user) {
  struct task *t = user;
  t->events += event->struct_size == sizeof *event;
  return 1;
}
static int on_out_of_memory(size_t bytes, void *user) {
  struct task *t = user;
  t->out_of_memory += bytes != 0;
  return 0;
}
static int on_progress(uint64_t bytes, uint64_t total, void *user) {
  struct task *t = user;
  t->progress += bytes <= total;
  return 0;
}
static void on_background_error(const stillmap_error *error, void *user) {
  struct task *t = user;
  t->background += error != NULL;
}

static int check_errors(struct task *t) {
  stillmap_error error = {.struct_size = sizeof error};
  CHECK(stillmap_api_version() == STILLMAP_C_API_VERSION);
  CHECK(strlen(stillmap_version()) >= 5);
  stillmap_error_clear();
  DONE(stillmap_error_last(&error));
  CHECK(error.status == STILLMAP_OK && strcmp(error.message, "") == 0);
  CHECK(stillmap_buffer_resize(NULL, 1) == STILLMAP_INVALID_ARGUMENT);
  DONE(stillmap_error_last(&error));
  CHECK(error.status == STILLMAP_INVALID_ARGUMENT);
  CHECK(strcmp(error.function, "stillmap_buffer_resize") == 0);
  CHECK(strcmp(error.operation, "stillmap_buffer_resize") == 0);
  CHECK(strcmp(error.message, stillmap_error_message()) == 0 && strlen(error.advice) > 0);
  CHECK(strcmp(stillmap_status_name(STILLMAP_BUSY), "busy") == 0);
  DONE(stillmap_background_error_set_callback(on_background_error, t));
  CHECK(stillmap_background_error_count() < UINT64_MAX);
  DONE(stillmap_background_error_set_callback(NULL, NULL));
  stillmap_string_free(NULL);
  return 0;
}

static int check_device(struct task *t) {
  int count = 0;
  uint64_t free_bytes = 0, total_bytes = 0;
  stillmap_device_info info = {.struct_size = sizeof info};
  DONE(stillmap_device_count(&count));
  CHECK(count >= 1);
  DONE(stillmap_device_open(0, &t->device));
  DONE(stillmap_device_get_info(t->device, &info));
  CHECK(strlen(info.name) > 0 && info.page_bytes > 0 && info.ordinal == 0);
  t->vmm = (int)info.vmm;
  t->page = (size_t)info.page_bytes;
  DONE(stillmap_device_get_memory(t->device, &free_bytes, &total_bytes));
  CHECK(free_bytes <= total_bytes && total_bytes > 0);
  return 0;
}

static int check_buffer(struct task *t) {
  const size_t page = t->page;
  char text[16] = "";
  stillmap_buffer_options options = {
      .struct_size = sizeof options, .reserve_bytes = 16 * page, .tag = "buffers"};
  stillmap_buffer_info info = {.struct_size = sizeof info};
  stillmap_buffer *buffer = NULL, *ring = NULL, *copy = NULL;
  char *json = NULL;
  DONE(stillmap_buffer_create(t->device, &options, &buffer));
  DONE(stillmap_buffer_resize(buffer, page));
  void *const address = stillmap_buffer_address(buffer);
  CHECK(address != NULL && stillmap_buffer_size(buffer) == page);
  DONE(stillmap_buffer_copy_from_host(buffer, 8, "still", 6, t->stream));
  DONE(stillmap_buffer_resize_on_stream(buffer, 2 * page, t->stream));
  DONE(stillmap_buffer_reserve(buffer, 3 * page));
  DONE(stillmap_buffer_reserve_on_stream(buffer, 4 * page, t->stream));
  CHECK(stillmap_buffer_capacity(buffer) >= 4 * page);
  DONE(stillmap_buffer_copy_to_host(buffer, 8, text, 6, t->stream));
  CHECK(strcmp(text, "still") == 0);
  DONE(stillmap_buffer_get_info(buffer, &info));
  CHECK(info.size == 2 * page && info.in_place == (uint32_t)t->vmm);
  CHECK(!t->vmm || info.address == address);
  DONE(stillmap_device_get_tags(t->device, &json));
  CHECK(!t->vmm || strstr(json, "\"buffers\"") != NULL);
  stillmap_string_free(json);
  DONE(stillmap_buffer_shrink_to_fit(buffer));
  DONE(stillmap_buffer_commit(buffer, 8 * page, page));
  DONE(stillmap_buffer_commit_on_stream(buffer, 9 * page, page, t->stream));
  DONE_WHERE_MAPPED(stillmap_buffer_decommit(buffer, 8 * page, 2 * page));
  DONE_WHERE_MAPPED(stillmap_buffer_alias(buffer, 0, page, 2, &ring));
  DONE(stillmap_buffer_destroy(ring));
  DONE(stillmap_buffer_fork(buffer, &copy));
  DONE(stillmap_buffer_make_writable(buffer, 0, page, t->stream));
  DONE(stillmap_buffer_destroy(copy));
  DONE(stillmap_buffer_destroy(buffer));
  CHECK(stillmap_buffer_destroy(buffer) == STILLMAP_INVALID_ARGUMENT);
  return 0;
}

static int check_vector(struct task *t) {
  const double values[4] = {1.0, 2.0, 3.0, 4.0};
  double back[6] = {0};
  stillmap_vector *vector = NULL;
  DONE(stillmap_vector_create(t->device, sizeof values[0], NULL, t->stream, &vector));
  DONE(stillmap_vector_reserve(vector, 8));
  DONE(stillmap_vector_append(vector, values, 4));
  DONE(stillmap_vector_append_from_device(vector, stillmap_vector_data(vector), 2));
  CHECK(stillmap_vector_size(vector) == 6 && stillmap_vector_capacity(vector) >= 6);
  DONE(stillmap_vector_synchronize(vector));
  DONE(stillmap_vector_copy_to_host(vector, 0, back, 6));
  CHECK(memcmp(back, values, sizeof values) == 0 && back[5] == 2.0);
  DONE(stillmap_vector_insert(vector, 1, values + 3, 1));  // 1 4 2 3 4 1 2
  DONE(stillmap_vector_erase(vector, 0, 1));               // 4 2 3 4 1 2
  DONE(stillmap_vector_copy_from_host(vector, 1, values, 1));
  DONE(stillmap_vector_copy_to_host(vector, 0, back, 3));
  CHECK(back[0] == 4.0 && back[1] == 1.0 && back[2] == 3.0);
  DONE(stillmap_vector_resize(vector, 2));
  DONE(stillmap_vector_shrink_to_fit(vector));
  CHECK(stillmap_vector_copy_to_host(vector, 1, back, 2) == STILLMAP_INVALID_ARGUMENT);
  DONE(stillmap_vector_destroy(vector));
  return 0;
}

static int check_quota(struct task *t, stillmap_quota **quota) {
  int deferred = 1;
  uint64_t released = 1;
  stillmap_quota_options options = {.struct_size = sizeof options,
                                    .limit_bytes = 64 * t->page,
                                    .minimum_bytes = t->page,
                                    .timeout_milliseconds = -1,
                                    .device = t->device};
  stillmap_quota_stats stats = {.struct_size = sizeof stats};
  DONE(stillmap_quota_open(t->name, &options, quota));
  DONE(stillmap_quota_start_thread(*quota));
  DONE(stillmap_quota_reserve(*quota, t->page));
  DONE(stillmap_quota_get_stats(*quota, &stats));
  CHECK(stats.limit_bytes == 64 * t->page && stats.own_bytes == t->page && stats.participants == 1);
  DONE(stillmap_quota_release(*quota, t->page));
  CHECK(stillmap_quota_reserve(*quota, 65 * t->page) == STILLMAP_OUT_OF_MEMORY);
  DONE(stillmap_quota_poll(*quota, &released));
  CHECK(released == 0);
  DONE(stillmap_quota_set_limit(*quota, 128 * t->page, &deferred));
  CHECK(deferred == 0);
  return 0;
}

static int check_blocks(struct task *t, stillmap_allocator *allocator) {
  void *block = NULL, *aligned = NULL;
  size_t usable = 0;
  int owns = 0;
  stillmap_allocate_options options = {.struct_size = sizeof options, .alignment = 4096, .zero = 1};
  DONE(stillmap_allocator_allocate(allocator, 1000, t->stream, NULL, &block));
  DONE(stillmap_allocator_allocate(allocator, 1000, t->stream, &options, &aligned));
  CHECK((uintptr_t)aligned % 4096 == 0);
  DONE(stillmap_allocator_usable_size(allocator, block, &usable));
  CHECK(usable >= 1000);
  DONE(stillmap_allocator_owns(allocator, block, &owns));
  CHECK(owns == 1);
  DONE(stillmap_allocator_owns(allocator, &owns, &owns));
  CHECK(owns == 0);
  DONE(stillmap_allocator_record_use(allocator, block, STILLMAP_STREAM_PER_THREAD));
  DONE(stillmap_allocator_free(allocator, block));
  CHECK(stillmap_allocator_free(allocator, block) == STILLMAP_INVALID_ARGUMENT);
  DONE(stillmap_allocator_free_on_stream(allocator, aligned, t->stream));
  CHECK(stillmap_allocator_allocate(allocator, 33 * t->page, t->stream, NULL, &block) ==
        STILLMAP_OUT_OF_MEMORY);
  CHECK(block == NULL && t->out_of_memory == 1 && t->events > 0);
  return 0;
}

static int check_allocator(struct task *t) {
  stillmap_quota *quota = NULL;
  TRY(check_quota(t, &quota));
  char trace[4096];
  snprintf(trace, sizeof trace, "%s/requests.trace", t->folder);
  stillmap_allocator_options options = {.struct_size = sizeof options,
                                        .limit_bytes = 32 * t->page,
                                        .soft_limit_bytes = 16 * t->page,
                                        .tag = "blocks",
                                        .quota = quota,
                                        .observer = on_event,
                                        .observer_user = t,
                                        .on_out_of_memory = on_out_of_memory,
                                        .on_out_of_memory_user = t,
                                        .record_to = trace};
  stillmap_allocator_stats stats = {.struct_size = sizeof stats};
  stillmap_release_report report = {.struct_size = sizeof report};
  stillmap_history_options history = {.struct_size = sizeof history, .events = 64};
  stillmap_allocator *allocator = NULL;
  char *json = NULL;
  DONE(stillmap_allocator_create(t->device, &options, &allocator));
  DONE(stillmap_quota_close(quota));  // the allocator keeps it
  DONE(stillmap_allocator_start_history(allocator, &history));
  TRY(check_blocks(t, allocator));
  DONE(stillmap_allocator_mark_iteration(allocator));
  DONE(stillmap_allocator_get_stats(allocator, &stats));
  CHECK(stats.allocations == 2 && stats.frees == 2 && stats.limit == 32 * t->page);
  CHECK(stats.out_of_memory == 1 && stats.live_peak >= 2000);
  DONE(stillmap_allocator_reset_peaks(allocator));
  DONE(stillmap_allocator_get_map(allocator, &json));
  CHECK(strstr(json, "arenas") != NULL);
  stillmap_string_free(json);
  DONE(stillmap_allocator_get_history(allocator, &json));
  CHECK(strstr(json, "free_requested") != NULL);
  stillmap_string_free(json);
  DONE(stillmap_allocator_stop_history(allocator));
  DONE(stillmap_allocator_forget_history(allocator));
  DONE(stillmap_allocator_set_limit(allocator, SIZE_MAX));
  DONE(stillmap_allocator_set_soft_limit(allocator, SIZE_MAX));
  DONE(stillmap_allocator_begin_step(allocator, t->page));
  DONE(stillmap_allocator_end_step(allocator));
  uint64_t pool = 0;
  void *block = NULL;
  DONE(stillmap_pool_create(allocator, &pool));
  DONE(stillmap_pool_retain(allocator, pool));
  DONE(stillmap_pool_begin(allocator, pool, t->stream));
  DONE(stillmap_allocator_allocate(allocator, t->page, t->stream, NULL, &block));
  DONE(stillmap_allocator_free(allocator, block));
  DONE(stillmap_pool_end(allocator, pool, t->stream));
  DONE(stillmap_pool_release(allocator, pool, NULL, 0));
  DONE(stillmap_pool_release(allocator, pool, &t->stream, 1));
  CHECK(stillmap_pool_release(allocator, pool, NULL, 0) == STILLMAP_INVALID_ARGUMENT);
  DONE(stillmap_allocator_trim(allocator, t->page, NULL));
  DONE(stillmap_allocator_empty_cache(allocator, &report));
  DONE(stillmap_allocator_forget_stream(allocator, t->stream));
  DONE(stillmap_allocator_destroy(allocator));
  remove(trace);
  DONE(stillmap_quota_remove(t->name));
  return 0;
}

static int check_suspend(struct task *t, stillmap_buffer *buffer) {
  void *const address = stillmap_buffer_address(buffer);
  char text[16] = "";
  char *json = NULL;
  stillmap_suspender_options options = {.struct_size = sizeof options, .streams = 2};
  stillmap_suspend_options how = {.struct_size = sizeof how, .store = STILLMAP_STORE_FILE};
  stillmap_suspended done = {.struct_size = sizeof done};
  stillmap_suspender *suspender = NULL;
  DONE(stillmap_suspender_create(t->device, &options, &suspender));
  DONE_WHERE_MAPPED(stillmap_suspender_suspend(suspender, "weights", NULL, &done));
  if (t->vmm) {
    CHECK(done.tags == 1 && done.bytes >= t->page);
    DONE(stillmap_suspender_get_tags(suspender, &json));
    CHECK(strstr(json, "\"weights\"") != NULL && strstr(json, "pinned_host") != NULL);
    stillmap_string_free(json);
    CHECK(stillmap_buffer_copy_to_host(buffer, 0, text, 8, NULL) == STILLMAP_BUSY);
    DONE(stillmap_suspender_resume(suspender, "weights", &done));
    how.directory = t->folder;
    DONE(stillmap_suspender_suspend(suspender, NULL, &how, &done));
    DONE(stillmap_suspender_resume(suspender, NULL, NULL));
    CHECK(stillmap_buffer_address(buffer) == address);
    DONE(stillmap_buffer_copy_to_host(buffer, 0, text, 8, NULL));
    CHECK(strcmp(text, "weights") == 0);
  }
  CHECK(stillmap_suspender_forget(suspender, "weights") == STILLMAP_INVALID_ARGUMENT);
  DONE(stillmap_suspender_destroy(suspender));
  return 0;
}

static int check_snapshot(struct task *t, stillmap_buffer *buffer) {
  static const char *const tags[] = {"weights"};
  void *const address = stillmap_buffer_address(buffer);
  char path[4096];
  size_t blocks = 0;
  stillmap_save_options save = {.struct_size = sizeof save,
                                .compression = STILLMAP_COMPRESSION_LZ4,
                                .on_progress = on_progress,
                                .user = t};
  stillmap_restore_options restore = {.struct_size = sizeof restore, .tags = tags, .tag_count = 1};
  stillmap_saved saved = {.struct_size = sizeof saved};
  stillmap_restored_block block = {.struct_size = sizeof block};
  stillmap_restored *restored = NULL;
  snprintf(path, sizeof path, "%s/weights.smi", t->folder);
  DONE_WHERE_MAPPED(stillmap_snapshot_save(t->device, path, tags, 1, &save, &saved));
  DONE(stillmap_buffer_destroy(buffer));
  if (!t->vmm) {
    CHECK(stillmap_snapshot_restore(t->device, path, &restore, &restored) != STILLMAP_OK);
    CHECK(stillmap_restored_get_count(restored, &blocks) == STILLMAP_INVALID_ARGUMENT);
    CHECK(stillmap_restored_get_block(restored, 0, &block) == STILLMAP_INVALID_ARGUMENT);
    DONE(stillmap_restored_release(restored));
    return 0;
  }
  CHECK(saved.contents_bytes >= t->page && t->progress > 0);
  DONE(stillmap_snapshot_restore(t->device, path, &restore, &restored));
  DONE(stillmap_restored_get_count(restored, &blocks));
  CHECK(blocks == 1);
  DONE(stillmap_restored_get_block(restored, 0, &block));
  CHECK(block.address == address && block.original_address == address);
  CHECK(strcmp(block.tag, "weights") == 0 && block.mapped_bytes >= t->page);
  DONE(stillmap_restored_release(restored));
  remove(path);
  return 0;
}

static int refuse(const char *const *tags, size_t count, stillmap_stop *stop, void *user) {
  (void)tags, (void)count, (void)user;
  return stillmap_stop_requested(stop) ? STILLMAP_CANCELED : STILLMAP_BUSY;
}

static int check_control(struct task *t) {
  char address[256];
  snprintf(address, sizeof address, "@%s", t->name);
  stillmap_control_options options = {.struct_size = sizeof options, .quiesce = refuse, .user = t};
  stillmap_control *control = NULL;
  DONE(stillmap_control_create(t->device, address, &options, &control));
  CHECK(strcmp(stillmap_control_address(control), address) == 0);
  DONE(stillmap_control_destroy(control));
  CHECK(stillmap_stop_requested(NULL) == 0);
  return 0;
}

int c_api_every_function(stillmap_stream stream, const char *folder, const char *name, char *report,
                         size_t room) {
  struct task task = {
      .stream = stream, .folder = folder, .name = name, .report = report, .room = room};
  struct task *const t = &task;
  TRY(check_errors(t));
  TRY(check_device(t));
  TRY(check_buffer(t));
  TRY(check_vector(t));
  TRY(check_allocator(t));
  stillmap_buffer_options options = {
      .struct_size = sizeof options, .reserve_bytes = 4 * t->page, .tag = "weights"};
  stillmap_buffer *buffer = NULL;
  DONE(stillmap_buffer_create(t->device, &options, &buffer));
  DONE(stillmap_buffer_resize(buffer, t->page));
  DONE(stillmap_buffer_copy_from_host(buffer, 0, "weights", 8, NULL));
  TRY(check_suspend(t, buffer));
  TRY(check_snapshot(t, buffer));
  TRY(check_control(t));
  DONE(stillmap_device_close(t->device));
  return 0;
}
