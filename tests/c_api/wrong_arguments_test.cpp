// Every function with NULL, with handles that are none, and with numbers that are too large: an error that names the
// function, and no crash.
#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <type_traits>
#include <utility>

#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {
namespace {

using call = std::function<stillmap_status()>;
struct wrong_calls {
  std::string function;
  std::vector<call> calls;
};

// What the value of a function that returns none of its own says.
stillmap_status failed_if(bool failed) {
  return failed ? static_cast<stillmap_status>(last_c_error().status) : STILLMAP_OK;
}

class wrong_call_table {
 public:
  explicit wrong_call_table(c_world &w)
      : w_(w), random_(::testing::UnitTest::GetInstance()->random_seed()) {
    stillmap_buffer *ended = nullptr;
    EXPECT_TRUE(c_done(stillmap_buffer_create(w.device, nullptr, &ended)));
    EXPECT_TRUE(c_done(stillmap_buffer_destroy(ended)));
    bad_ = {reinterpret_cast<void *>(1), reinterpret_cast<void *>(-1), &w_, ended};
    for (int i = 0; i < 16; ++i) bad_.push_back(reinterpret_cast<void *>(random_()));
    // Nearly right: another index, another generation.
    const auto device = reinterpret_cast<std::uintptr_t>(w.device);
    bad_.push_back(reinterpret_cast<void *>(device + 12345));
    bad_.push_back(reinterpret_cast<void *>(device ^ std::uintptr_t{1} << 20));
  }

  // act(handle) for each handle that is none of an H.
  template <class H, class Act>
  void handle(const char *function, Act act, bool null_too = true) {
    std::vector<void *> all = bad_;
    if (null_too) all.push_back(nullptr);
    all.push_back(std::is_same_v<H, stillmap_device> ? static_cast<void *>(w_.buffer)
                                                     : static_cast<void *>(w_.device));
    for (void *const h : all) add(function, [act, h] { return act(static_cast<H *>(h)); });
  }
  void add(const char *function, call c) {
    auto &last = rows_.empty() || rows_.back().function != function
                     ? rows_.emplace_back(wrong_calls{function, {}})
                     : rows_.back();
    last.calls.push_back(std::move(c));
  }
  const std::vector<wrong_calls> &rows() const { return rows_; }

 private:
  c_world &w_;
  std::mt19937_64 random_;
  std::vector<void *> bad_;
  std::vector<wrong_calls> rows_;
};

// Those that cannot fail.
const std::set<std::string> cannot_fail = {"stillmap_api_version",
                                           "stillmap_version",
                                           "stillmap_string_free",
                                           "stillmap_error_message",
                                           "stillmap_error_clear",
                                           "stillmap_status_name",
                                           "stillmap_error_last",
                                           "stillmap_background_error_set_callback",
                                           "stillmap_background_error_count"};

#define HANDLE(type, function, ...)                \
  t.handle<type>(#function, [&w](type *h) {        \
    (void)w;                                       \
    return function(h __VA_OPT__(, ) __VA_ARGS__); \
  })
#define ENDS(type, function) \
  t.handle<type>(            \
      #function, [](type *h) { return function(h); }, false)
#define VALUE(type, function) \
  t.handle<type>(#function, [](type *h) { return failed_if(function(h) == 0); })
#define WRONG(function, ...)      \
  t.add(#function, [&w] {         \
    (void)w;                      \
    return function(__VA_ARGS__); \
  })

void add_devices(wrong_call_table &t, c_world &w) {
  WRONG(stillmap_device_count, nullptr);
  WRONG(stillmap_device_open, 0, nullptr);
  static stillmap_device *device = nullptr;
  WRONG(stillmap_device_open, -1, &device);
  WRONG(stillmap_device_open, 1 << 30, &device);
  ENDS(stillmap_device, stillmap_device_close);
  static auto info = sized<stillmap_device_info>();
  HANDLE(stillmap_device, stillmap_device_get_info, &info);
  WRONG(stillmap_device_get_info, w.device, nullptr);
  static std::uint64_t bytes = 0;
  HANDLE(stillmap_device, stillmap_device_get_memory, &bytes, &bytes);
  WRONG(stillmap_device_get_memory, w.device, nullptr, &bytes);
  WRONG(stillmap_device_get_memory, w.device, &bytes, nullptr);
  static char *json = nullptr;
  HANDLE(stillmap_device, stillmap_device_get_tags, &json);
  WRONG(stillmap_device_get_tags, w.device, nullptr);
}

void add_buffers(wrong_call_table &t, c_world &w) {
  static stillmap_buffer *made = nullptr;
  static char host[8];
  HANDLE(stillmap_device, stillmap_buffer_create, nullptr, &made);
  WRONG(stillmap_buffer_create, w.device, nullptr, nullptr);
  static auto peers = sized<stillmap_buffer_options>();
  peers.peer_device_count = 2;
  WRONG(stillmap_buffer_create, w.device, &peers, &made);
  static auto exportable = sized<stillmap_buffer_options>();
  exportable.exportable = 77;
  WRONG(stillmap_buffer_create, w.device, &exportable, &made);
  ENDS(stillmap_buffer, stillmap_buffer_destroy);
  HANDLE(stillmap_buffer, stillmap_buffer_resize, 1);
  HANDLE(stillmap_buffer, stillmap_buffer_resize_on_stream, 1, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_reserve, 1);
  HANDLE(stillmap_buffer, stillmap_buffer_reserve_on_stream, 1, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_shrink_to_fit);
  HANDLE(stillmap_buffer, stillmap_buffer_commit, 0, 0);
  HANDLE(stillmap_buffer, stillmap_buffer_commit_on_stream, 0, 0, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_decommit, 0, 0);
  VALUE(stillmap_buffer, stillmap_buffer_address);
  VALUE(stillmap_buffer, stillmap_buffer_size);
  VALUE(stillmap_buffer, stillmap_buffer_capacity);
  static auto info = sized<stillmap_buffer_info>();
  HANDLE(stillmap_buffer, stillmap_buffer_get_info, &info);
  WRONG(stillmap_buffer_get_info, w.buffer, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_copy_from_host, 0, host, 1, nullptr);
  WRONG(stillmap_buffer_copy_from_host, w.buffer, 0, nullptr, 1, nullptr);
  WRONG(stillmap_buffer_copy_from_host, w.buffer, SIZE_MAX, host, 8, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_copy_to_host, 0, host, 1, nullptr);
  WRONG(stillmap_buffer_copy_to_host, w.buffer, 0, nullptr, 1, nullptr);
  WRONG(stillmap_buffer_copy_to_host, w.buffer, SIZE_MAX - 4, host, 8, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_alias, 0, 1, 1, &made);
  WRONG(stillmap_buffer_alias, w.buffer, 0, 1, 1, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_fork, &made);
  WRONG(stillmap_buffer_fork, w.buffer, nullptr);
  HANDLE(stillmap_buffer, stillmap_buffer_make_writable, 0, 1, nullptr);
}

void add_vectors(wrong_call_table &t, c_world &w) {
  static stillmap_vector *made = nullptr;
  static char host[8];
  HANDLE(stillmap_device, stillmap_vector_create, 4, nullptr, nullptr, &made);
  WRONG(stillmap_vector_create, w.device, 0, nullptr, nullptr, &made);
  WRONG(stillmap_vector_create, w.device, 4, nullptr, nullptr, nullptr);
  ENDS(stillmap_vector, stillmap_vector_destroy);
  HANDLE(stillmap_vector, stillmap_vector_append, host, 1);
  WRONG(stillmap_vector_append, w.vector, nullptr, 1);
  WRONG(stillmap_vector_append, w.vector, host, SIZE_MAX);
  HANDLE(stillmap_vector, stillmap_vector_append_from_device, host, 1);
  WRONG(stillmap_vector_append_from_device, w.vector, nullptr, 1);
  HANDLE(stillmap_vector, stillmap_vector_insert, 0, host, 1);
  WRONG(stillmap_vector_insert, w.vector, 5, host, 1);
  WRONG(stillmap_vector_insert, w.vector, 0, nullptr, 1);
  HANDLE(stillmap_vector, stillmap_vector_erase, 0, 1);
  WRONG(stillmap_vector_erase, w.vector, 4, 1);
  WRONG(stillmap_vector_erase, w.vector, SIZE_MAX, SIZE_MAX);
  HANDLE(stillmap_vector, stillmap_vector_resize, 1);
  HANDLE(stillmap_vector, stillmap_vector_reserve, 1);
  HANDLE(stillmap_vector, stillmap_vector_shrink_to_fit);
  VALUE(stillmap_vector, stillmap_vector_size);
  VALUE(stillmap_vector, stillmap_vector_capacity);
  VALUE(stillmap_vector, stillmap_vector_data);
  HANDLE(stillmap_vector, stillmap_vector_copy_from_host, 0, host, 1);
  WRONG(stillmap_vector_copy_from_host, w.vector, 0, nullptr, 1);
  WRONG(stillmap_vector_copy_from_host, w.vector, 1, host, SIZE_MAX);
  HANDLE(stillmap_vector, stillmap_vector_copy_to_host, 0, host, 1);
  WRONG(stillmap_vector_copy_to_host, w.vector, 0, nullptr, 1);
  WRONG(stillmap_vector_copy_to_host, w.vector, 4, host, 1);
  HANDLE(stillmap_vector, stillmap_vector_synchronize);
}

void add_quotas(wrong_call_table &t, c_world &w) {
  static stillmap_quota *made = nullptr;
  WRONG(stillmap_quota_open, nullptr, nullptr, &made);
  WRONG(stillmap_quota_open, "", nullptr, &made);
  WRONG(stillmap_quota_open, "name", nullptr, nullptr);
  static auto with = sized<stillmap_quota_options>();
  with.limit_bytes = 1 << 30;
  with.device = reinterpret_cast<stillmap_device *>(77);
  WRONG(stillmap_quota_open, w.quota_name.c_str(), &with, &made);
  ENDS(stillmap_quota, stillmap_quota_close);
  WRONG(stillmap_quota_remove, nullptr);
  HANDLE(stillmap_quota, stillmap_quota_start_thread);
  HANDLE(stillmap_quota, stillmap_quota_poll, nullptr);
  HANDLE(stillmap_quota, stillmap_quota_reserve, 1);
  HANDLE(stillmap_quota, stillmap_quota_release, 1);
  WRONG(stillmap_quota_release, w.quota, UINT64_MAX);
  HANDLE(stillmap_quota, stillmap_quota_set_limit, 1, nullptr);
  WRONG(stillmap_quota_set_limit, w.quota, 0, nullptr);
  static auto stats = sized<stillmap_quota_stats>();
  HANDLE(stillmap_quota, stillmap_quota_get_stats, &stats);
  WRONG(stillmap_quota_get_stats, w.quota, nullptr);
}

void add_allocators(wrong_call_table &t, c_world &w) {
  static stillmap_allocator *made = nullptr;
  static void *block = nullptr;
  static char *json = nullptr;
  HANDLE(stillmap_device, stillmap_allocator_create, nullptr, &made);
  WRONG(stillmap_allocator_create, w.device, nullptr, nullptr);
  static auto with = sized<stillmap_allocator_options>();
  with.quota = reinterpret_cast<stillmap_quota *>(77);
  WRONG(stillmap_allocator_create, w.device, &with, &made);
  static auto peers = sized<stillmap_allocator_options>();
  peers.peer_device_count = SIZE_MAX;
  WRONG(stillmap_allocator_create, w.device, &peers, &made);
  ENDS(stillmap_allocator, stillmap_allocator_destroy);
  HANDLE(stillmap_allocator, stillmap_allocator_allocate, 1, nullptr, nullptr, &block);
  WRONG(stillmap_allocator_allocate, w.allocator, 1, nullptr, nullptr, nullptr);
  static auto alignment = sized<stillmap_allocate_options>();
  alignment.alignment = 3;
  WRONG(stillmap_allocator_allocate, w.allocator, 1, nullptr, &alignment, &block);
  HANDLE(stillmap_allocator, stillmap_allocator_free, nullptr);
  WRONG(stillmap_allocator_free, w.allocator, &block);
  HANDLE(stillmap_allocator, stillmap_allocator_free_on_stream, nullptr, nullptr);
  WRONG(stillmap_allocator_free_on_stream, w.allocator, &block, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_record_use, nullptr, nullptr);
  WRONG(stillmap_allocator_record_use, w.allocator, &block, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_forget_stream, nullptr);
  static int owns = 0;
  static std::size_t usable = 0;
  HANDLE(stillmap_allocator, stillmap_allocator_owns, nullptr, &owns);
  WRONG(stillmap_allocator_owns, w.allocator, nullptr, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_usable_size, nullptr, &usable);
  WRONG(stillmap_allocator_usable_size, w.allocator, &block, &usable);
  WRONG(stillmap_allocator_usable_size, w.allocator, nullptr, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_empty_cache, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_trim, 0, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_set_limit, 0);
  HANDLE(stillmap_allocator, stillmap_allocator_set_soft_limit, 0);
  static auto stats = sized<stillmap_allocator_stats>();
  HANDLE(stillmap_allocator, stillmap_allocator_get_stats, &stats);
  WRONG(stillmap_allocator_get_stats, w.allocator, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_reset_peaks);
  HANDLE(stillmap_allocator, stillmap_allocator_get_map, &json);
  WRONG(stillmap_allocator_get_map, w.allocator, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_get_history, &json);
  WRONG(stillmap_allocator_get_history, w.allocator, nullptr);
  HANDLE(stillmap_allocator, stillmap_allocator_start_history, nullptr);
  static auto history = sized<stillmap_history_options>();
  history.events = SIZE_MAX;
  WRONG(stillmap_allocator_start_history, w.allocator, &history);
  HANDLE(stillmap_allocator, stillmap_allocator_stop_history);
  HANDLE(stillmap_allocator, stillmap_allocator_forget_history);
  HANDLE(stillmap_allocator, stillmap_allocator_begin_step, 0);
  HANDLE(stillmap_allocator, stillmap_allocator_end_step);
  HANDLE(stillmap_allocator, stillmap_allocator_mark_iteration);
  static std::uint64_t pool = 0;
  HANDLE(stillmap_allocator, stillmap_pool_create, &pool);
  WRONG(stillmap_pool_create, w.allocator, nullptr);
  HANDLE(stillmap_allocator, stillmap_pool_retain, 1);
  WRONG(stillmap_pool_retain, w.allocator, 0);
  WRONG(stillmap_pool_retain, w.allocator, UINT64_MAX);
  HANDLE(stillmap_allocator, stillmap_pool_release, 1, nullptr, 0);
  WRONG(stillmap_pool_release, w.allocator, 77, nullptr, 0);
  WRONG(stillmap_pool_release, w.allocator, 77, nullptr, 1);
  WRONG(stillmap_pool_release, w.allocator, 77, nullptr, SIZE_MAX);
  HANDLE(stillmap_allocator, stillmap_pool_begin, 1, nullptr);
  WRONG(stillmap_pool_begin, w.allocator, 77, nullptr);
  HANDLE(stillmap_allocator, stillmap_pool_end, 1, nullptr);
  WRONG(stillmap_pool_end, w.allocator, 77, nullptr);
}

void add_checkpoints(wrong_call_table &t, c_world &w) {
  static stillmap_suspender *suspender = nullptr;
  static char *json = nullptr;
  HANDLE(stillmap_device, stillmap_suspender_create, nullptr, &suspender);
  WRONG(stillmap_suspender_create, w.device, nullptr, nullptr);
  static auto streams = sized<stillmap_suspender_options>();
  streams.streams = SIZE_MAX;
  WRONG(stillmap_suspender_create, w.device, &streams, &suspender);
  ENDS(stillmap_suspender, stillmap_suspender_destroy);
  HANDLE(stillmap_suspender, stillmap_suspender_suspend, "buffer", nullptr, nullptr);
  static auto store = sized<stillmap_suspend_options>();
  store.store = 3;
  WRONG(stillmap_suspender_suspend, w.suspender, "buffer", &store, nullptr);
  static stillmap_suspended bad_size{};
  WRONG(stillmap_suspender_suspend, w.suspender, "buffer", nullptr, &bad_size);
  HANDLE(stillmap_suspender, stillmap_suspender_resume, nullptr, nullptr);
  WRONG(stillmap_suspender_resume, w.suspender, nullptr, nullptr);
  WRONG(stillmap_suspender_resume, w.suspender, "nothing", nullptr);
  HANDLE(stillmap_suspender, stillmap_suspender_forget, "nothing");
  WRONG(stillmap_suspender_forget, w.suspender, nullptr);
  HANDLE(stillmap_suspender, stillmap_suspender_get_tags, &json);
  WRONG(stillmap_suspender_get_tags, w.suspender, nullptr);
  static const char *const tags[] = {"buffer", nullptr};
  HANDLE(stillmap_device, stillmap_snapshot_save, "/x", tags, 1, nullptr, nullptr);
  WRONG(stillmap_snapshot_save, w.device, nullptr, tags, 1, nullptr, nullptr);
  WRONG(stillmap_snapshot_save, w.device, "/x", nullptr, 1, nullptr, nullptr);
  WRONG(stillmap_snapshot_save, w.device, "/x", tags, 2, nullptr, nullptr);
  WRONG(stillmap_snapshot_save, w.device, "/x", tags, SIZE_MAX, nullptr, nullptr);
  static auto codec = sized<stillmap_save_options>();
  codec.compression = 9;
  WRONG(stillmap_snapshot_save, w.device, "/x", tags, 1, &codec, nullptr);
  static stillmap_restored *restored = nullptr;
  HANDLE(stillmap_device, stillmap_snapshot_restore, "/x", nullptr, &restored);
  WRONG(stillmap_snapshot_restore, w.device, nullptr, nullptr, &restored);
  WRONG(stillmap_snapshot_restore, w.device, "/x", nullptr, nullptr);
  static std::size_t count = 0;
  static auto block = sized<stillmap_restored_block>();
  HANDLE(stillmap_restored, stillmap_restored_get_count, &count);
  HANDLE(stillmap_restored, stillmap_restored_get_block, 0, &block);
  ENDS(stillmap_restored, stillmap_restored_release);
  static stillmap_control *control = nullptr;
  HANDLE(stillmap_device, stillmap_control_create, "@x", nullptr, &control);
  WRONG(stillmap_control_create, w.device, nullptr, nullptr, &control);
  WRONG(stillmap_control_create, w.device, "", nullptr, &control);
  WRONG(stillmap_control_create, w.device, "@x", nullptr, nullptr);
  static auto timeout = sized<stillmap_control_options>();
  timeout.timeout_milliseconds = -1;
  WRONG(stillmap_control_create, w.device, "@x", &timeout, &control);
  ENDS(stillmap_control, stillmap_control_destroy);
  VALUE(stillmap_control, stillmap_control_address);
  VALUE(stillmap_stop, stillmap_stop_requested);
}

class c_api_wrong_arguments : public device_test {};

TEST_F(c_api_wrong_arguments, every_function_refuses_them_by_its_name) {
  c_world w;
  wrong_call_table t(w);
  add_devices(t, w);
  add_buffers(t, w);
  add_vectors(t, w);
  add_quotas(t, w);
  add_allocators(t, w);
  add_checkpoints(t, w);
  std::set<std::string> called = cannot_fail;
  for (const wrong_calls &row : t.rows()) {
    called.insert(row.function);
    for (std::size_t i = 0; i < row.calls.size(); ++i) {
      stillmap_error_clear();
      EXPECT_EQ(row.calls[i](), STILLMAP_INVALID_ARGUMENT)
          << row.function << ", call " << i << ": " << c_message();
      const stillmap_error e = last_c_error();
      EXPECT_EQ(e.status, STILLMAP_INVALID_ARGUMENT) << row.function << ", call " << i;
      EXPECT_EQ(e.function, row.function) << "call " << i;
      EXPECT_STRNE(e.reason, "") << row.function << ", call " << i;
      EXPECT_NE(c_message().find(row.function), std::string::npos) << c_message();
    }
  }
  for (const std::string &name : exported_functions()) {
    EXPECT_TRUE(called.contains(name)) << "add it to the table: " << name;
  }
}

TEST_F(c_api_wrong_arguments, what_ends_an_object_ignores_null) {
  EXPECT_EQ(stillmap_device_close(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_buffer_destroy(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_vector_destroy(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_allocator_destroy(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_quota_close(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_suspender_destroy(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_restored_release(nullptr), STILLMAP_OK);
  EXPECT_EQ(stillmap_control_destroy(nullptr), STILLMAP_OK);
}

TEST_F(c_api_wrong_arguments, a_failed_call_leaves_null_in_its_outputs) {
  c_world w(false);
  int here = 0;
  const auto garbage = [&here](auto *&output) {
    output = reinterpret_cast<std::remove_reference_t<decltype(output)>>(&here);
  };
  stillmap_device *device = nullptr;
  garbage(device);
  EXPECT_NE(stillmap_device_open(-1, &device), STILLMAP_OK);
  EXPECT_EQ(device, nullptr);
  stillmap_buffer *buffer = nullptr;
  garbage(buffer);
  EXPECT_NE(stillmap_buffer_create(nullptr, nullptr, &buffer), STILLMAP_OK);
  EXPECT_EQ(buffer, nullptr);
  void *block = &here;
  EXPECT_NE(stillmap_allocator_allocate(nullptr, 1, nullptr, nullptr, &block), STILLMAP_OK);
  EXPECT_EQ(block, nullptr);
  for (const auto text :
       {+[](char **json) { return stillmap_allocator_get_map(nullptr, json); },
        +[](char **json) { return stillmap_allocator_get_history(nullptr, json); },
        +[](char **json) { return stillmap_device_get_tags(nullptr, json); },
        +[](char **json) { return stillmap_suspender_get_tags(nullptr, json); }}) {
    char *json = nullptr;
    garbage(json);
    EXPECT_NE(text(&json), STILLMAP_OK);
    EXPECT_EQ(json, nullptr);
  }
}

// On objects that exist: any numbers, whose ends may overflow.
TEST_F(c_api_wrong_arguments, random_numbers_do_no_harm) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  std::mt19937_64 random(seed);
  c_world w;
  const auto number = [&]() -> std::size_t {
    static constexpr std::size_t edges[] = {
        0, 1, 2, 7, 511, 4096, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, SIZE_MAX / 4 + 1};
    const std::uint64_t r = random();
    if (r % 3 == 0) return edges[r / 3 % std::size(edges)];
    if (r % 3 == 1) return r / 3 % 4 * w.page;
    return static_cast<std::size_t>(random() | std::uint64_t{1} << 50);
  };
  std::size_t refused = 0, tried = 0;
  const auto count = [&](stillmap_status s) {
    ++tried;
    refused += s != STILLMAP_OK;
  };
  for (int i = 0; i < 60; ++i) {
    count(stillmap_buffer_resize(w.buffer, number()));
    count(stillmap_buffer_reserve(w.buffer, number()));
    count(stillmap_buffer_commit(w.buffer, number(), number()));
    count(stillmap_buffer_decommit(w.buffer, number(), number()));
    count(stillmap_buffer_make_writable(w.buffer, number(), number(), nullptr));
    stillmap_buffer *made = nullptr;
    count(stillmap_buffer_alias(w.buffer, number(), number(), number(), &made));
    EXPECT_TRUE(c_done(stillmap_buffer_destroy(made)));
    count(stillmap_vector_resize(w.vector, number()));
    count(stillmap_vector_reserve(w.vector, number()));
    count(stillmap_vector_erase(w.vector, number(), number()));
    auto alignment = sized<stillmap_allocate_options>();
    alignment.alignment = number();
    void *block = nullptr;
    count(stillmap_allocator_allocate(w.allocator, number(), nullptr, &alignment, &block));
    EXPECT_TRUE(c_done(stillmap_allocator_free(w.allocator, block)));
    count(stillmap_allocator_free(w.allocator, reinterpret_cast<void *>(number() | 1)));
    count(stillmap_allocator_trim(w.allocator, number(), nullptr));
    count(stillmap_allocator_begin_step(w.allocator, number() % (8 * w.page)));
    count(stillmap_allocator_end_step(w.allocator));
    count(stillmap_quota_reserve(w.quota, number()));
    count(stillmap_quota_release(w.quota, number()));
    if (HasFailure()) break;
  }
  EXPECT_GT(refused, tried / 10) << "seed " << seed;
  EXPECT_LT(refused, tried) << "seed " << seed;
}

}  // namespace
}  // namespace stillmap::testing
