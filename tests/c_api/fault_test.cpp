// Each driver call and each host allocation of the C API failed once: an error of the function, or none; and the call
// succeeds when it is repeated.
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"
#include "tests/support/host_memory.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/unique_name.h"

namespace stillmap::testing {
namespace {

// What was made, and has to be ended again.
struct made_objects {
  stillmap_device *device = nullptr;
  stillmap_buffer *buffer = nullptr;
  stillmap_vector *vector = nullptr;
  stillmap_allocator *allocator = nullptr;
  stillmap_suspender *suspender = nullptr;
  stillmap_restored *restored = nullptr;
  stillmap_control *control = nullptr;
  void *block = nullptr;
  char *json = nullptr;
};

struct c_operation {
  std::string function;
  bool vmm;
  std::function<stillmap_status(c_world &, made_objects &)> run;
};

// In a folder of its own: replacing an image looks at what is beside it.
class image_folder {
 public:
  image_folder() { std::filesystem::create_directory(folder_); }
  ~image_folder() { std::filesystem::remove_all(folder_); }
  const char *image() const { return image_.c_str(); }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / unique_name("stillmap-c-fault");
  const std::string image_ = (folder_ / "image.smi").string();
};

std::vector<c_operation> c_operations(const image_folder &folder) {
  static const char *const tags[] = {"buffer"};
  static const int values[64] = {1, 2, 3};
  return {
      {"stillmap_device_open", false,
       [](c_world &, made_objects &m) { return stillmap_device_open(0, &m.device); }},
      {"stillmap_device_get_tags", false,
       [](c_world &w, made_objects &m) { return stillmap_device_get_tags(w.device, &m.json); }},
      {"stillmap_buffer_create", false,
       [](c_world &w, made_objects &m) {
         auto options = sized<stillmap_buffer_options>();
         options.reserve_bytes = 4 * w.page;
         options.tag = "a tag that is too long for the object itself";
         return stillmap_buffer_create(w.device, &options, &m.buffer);
       }},
      {"stillmap_buffer_resize", false,
       [](c_world &w, made_objects &) { return stillmap_buffer_resize(w.buffer, 3 * w.page); }},
      {"stillmap_buffer_fork", true,
       [](c_world &w, made_objects &m) { return stillmap_buffer_fork(w.buffer, &m.buffer); }},
      {"stillmap_buffer_alias", true,
       [](c_world &w, made_objects &m) {
         return stillmap_buffer_alias(w.buffer, 0, w.page, 2, &m.buffer);
       }},
      {"stillmap_vector_create", false,
       [](c_world &w, made_objects &m) {
         return stillmap_vector_create(w.device, 8, nullptr, nullptr, &m.vector);
       }},
      {"stillmap_vector_append", false,
       [](c_world &w, made_objects &) { return stillmap_vector_append(w.vector, values, 64); }},
      {"stillmap_allocator_create", false,
       [](c_world &w, made_objects &m) {
         return stillmap_allocator_create(w.device, nullptr, &m.allocator);
       }},
      {"stillmap_allocator_allocate", false,
       [](c_world &w, made_objects &m) {
         return stillmap_allocator_allocate(w.allocator, 5 << 20, nullptr, nullptr, &m.block);
       }},
      {"stillmap_allocator_get_map", false,
       [](c_world &w, made_objects &m) {
         return stillmap_allocator_get_map(w.allocator, &m.json);
       }},
      {"stillmap_allocator_start_history", false,
       [](c_world &w, made_objects &) {
         return stillmap_allocator_start_history(w.allocator, nullptr);
       }},
      {"stillmap_suspender_create", false,
       [](c_world &w, made_objects &m) {
         return stillmap_suspender_create(w.device, nullptr, &m.suspender);
       }},
      {"stillmap_suspender_suspend", true,
       [](c_world &w, made_objects &) {
         return stillmap_suspender_suspend(w.suspender, nullptr, nullptr, nullptr);
       }},
      {"stillmap_snapshot_save", true,
       [&folder](c_world &w, made_objects &) {
         auto options = sized<stillmap_save_options>();
         options.replace = 1;
         options.threads = 1;
         return stillmap_snapshot_save(w.device, folder.image(), tags, 1, &options, nullptr);
       }},
  };
}

void end_all(c_world &w, made_objects &m) {
  stillmap_string_free(m.json);
  EXPECT_TRUE(c_done(stillmap_allocator_free(w.allocator, m.block)));
  EXPECT_TRUE(c_done(stillmap_suspender_destroy(m.suspender)));
  EXPECT_TRUE(c_done(stillmap_allocator_destroy(m.allocator)));
  EXPECT_TRUE(c_done(stillmap_vector_destroy(m.vector)));
  EXPECT_TRUE(c_done(stillmap_buffer_destroy(m.buffer)));
  EXPECT_TRUE(c_done(stillmap_device_close(m.device)));
  if (w.vmm) stillmap_suspender_resume(w.suspender, nullptr, nullptr);
}

class c_api_faults : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    expect_unreturnable();
  }

  // Runs the operation with what `begin` makes fail. Returns whether that happened, by `end`.
  template <class Begin, class End>
  bool fail_once(const c_operation &op, bool of_host, const Begin &begin, const End &end) {
    c_world w(false);
    if (op.vmm && !w.vmm) return false;
    made_objects m;
    stillmap_error_clear();
    begin();
    const stillmap_status s = op.run(w, m);
    const bool happened = end();
    if (s != STILLMAP_OK) {
      EXPECT_TRUE(happened) << c_message();
      const stillmap_error e = last_c_error();
      EXPECT_EQ(e.status, s);
      EXPECT_EQ(e.function, op.function);
      EXPECT_STRNE(e.message, "");
      EXPECT_EQ(s == STILLMAP_OUT_OF_HOST_MEMORY, of_host) << e.message;
      EXPECT_TRUE(c_done(op.run(w, m))) << "repeated";
      ++refused_;
    } else {
      ++(happened ? survived_ : whole_);
    }
    end_all(w, m);
    return happened;
  }

  const image_folder folder_;
  std::size_t refused_ = 0, survived_ = 0, whole_ = 0;
};

TEST_F(c_api_faults, each_driver_call_failing_once) {
  for (const c_operation &op : c_operations(folder_)) {
    const std::uint64_t stride = sweep_stride(3);
    for (std::uint64_t n = 1;; n += stride) {
      SCOPED_TRACE(op.function + ", driver call " + std::to_string(n));
      const bool happened = fail_once(
          op, false,
          [&] {
            hostcuda_control::faults_fired();
            hostcuda_control::fail(nullptr, n,
                                   n % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
          },
          [] {
            hostcuda_control::stop_failing(nullptr);
            return hostcuda_control::faults_fired() != 0;
          });
      if (!happened || HasFailure()) break;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused_, 15 / sweep_stride(3));
  std::printf("note: C API: %zu driver calls failed once and were refused, %zu survived\n",
              refused_, survived_);
}

TEST_F(c_api_faults, each_host_allocation_failing_once) {
  for (const c_operation &op : c_operations(folder_)) {
    const std::uint64_t stride = one_in(1);
    for (std::uint64_t n = 0;; n += stride) {
      SCOPED_TRACE(op.function + ", host allocation " + std::to_string(n));
      std::optional<fail_host_allocation> failing;
      const bool happened = fail_once(
          op, true, [&] { failing.emplace(n); },
          [&] {
            failing->stop();
            return failing->happened();
          });
      if (!happened || HasFailure()) break;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused_, fewest_points(50));
  std::printf("note: C API: %zu host allocations failed once and were refused, %zu survived\n",
              refused_, survived_);
}

}  // namespace
}  // namespace stillmap::testing
