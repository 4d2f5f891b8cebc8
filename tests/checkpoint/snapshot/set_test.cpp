// Saving the memory of several devices as one set, and restoring it on all of them or none. On a
// machine with one device the set has two parts of it.
#include "stillmap/checkpoint/snapshot/set.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/checkpoint/snapshot/internal/all_or_none.h"
#include "tests/checkpoint/base/refusing_files.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"
#include "tests/support/gpu_test.h"
#include "tests/support/refuse_each.h"
#include "tests/support/stream_gate.h"

namespace stillmap::snapshot {
namespace {

using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;
using stillmap::testing::refuse_each;
namespace hostcuda_control = stillmap::testing::hostcuda_control;

class sets : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    const auto there = device::count();
    devices_ = {dev(), there && *there > 1 ? open_device(1) : dev()};
    std::string name = ::testing::TempDir() + "/stillmap-sets-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    devices_.clear();
    buffer_test::TearDown();
  }

  std::string folder(const char *name = "a.stillmap") const { return folder_ / name; }
  std::size_t files(const char *name = "a.stillmap") const {
    if (!std::filesystem::exists(folder(name))) return 0;
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder(name)),
                                                  std::filesystem::directory_iterator()));
  }
  bool two_devices() const { return devices_[0] != devices_[1]; }

  // Memory of part `i` with its tag, at addresses that are free in other processes too.
  growable_buffer memory(std::size_t i, std::size_t pages, unsigned seed) const {
    buffer_options options;
    options.hint = device_address(stillmap::testing::far_away + i * (std::size_t{1} << 32));
    options.reserve_bytes = std::size_t{64} << 20;
    options.tag = tags[i];
    auto made = growable_buffer::create(devices_[i], std::move(options));
    if (!made || !made->resize(pages * page())) throw std::runtime_error("no memory");
    put(devices_[i], made->address(), pattern(pages * page(), seed));
    return std::move(*made);
  }
  std::vector<set_part> parts() const {
    return {{devices_[0], {tags[0]}, {}, {}}, {devices_[1], {tags[1]}, {}, {}}};
  }
  result<written_set> saved(const save_set_options &options = {},
                            const char *name = "a.stillmap") const {
    return save_set(parts(), folder(name), options);
  }
  static save_set_options replacing() {
    save_set_options options;
    options.image.replace = true;
    return options;
  }

  void expect_nothing_there() const {
    for (const device &d : devices_) {
      d.space().collect(true);
      EXPECT_EQ(d.space().stats().live_blocks, 0u);
      EXPECT_EQ(d.space().stats().physical.bytes(), 0u);
    }
  }
  void give_back_pages() const {
    for (const device &d : devices_) {
      ASSERT_TRUE(d.pool()->trim());
      d.space().collect(true);
    }
  }

  static constexpr const char *tags[] = {"weights", "cache"};
  std::vector<device> devices_;

 private:
  std::filesystem::path folder_;
};

TEST_F(sets, memory_of_all_devices_comes_back_at_the_same_addresses) {
  device_address at[2];
  {
    const growable_buffer a = memory(0, 3, 1), b = memory(1, 2, 2);
    at[0] = a.address();
    at[1] = b.address();
    auto what = parts();
    what[1].notes.push_back({"step", {std::byte{42}}});
    const auto w = save_set(what, folder());
    ASSERT_DONE(w);
    ASSERT_EQ(w->images.size(), 2u);
    EXPECT_EQ(w->images[0].contents_bytes, 3 * page());
    EXPECT_EQ(w->images[1].contents_bytes, 2 * page());
    EXPECT_EQ(files(), 3u);
    const auto images = image::open_set(folder());
    ASSERT_DONE(images);
    EXPECT_EQ((*images)[0].superblock().set, w->set);
    EXPECT_EQ((*images)[0].superblock().time, (*images)[1].superblock().time) << "one moment";
  }
  give_back_pages();
  {
    const auto r = restore_set(devices_, folder());
    ASSERT_DONE(r);
    ASSERT_EQ(r->devices.size(), 2u);
    for (unsigned i = 0; i < 2; ++i) {
      EXPECT_EQ(r->devices[i].memory.device(), devices_[i]);
      EXPECT_EQ(r->devices[i].memory.tagged(tags[i]).at(0).begin, at[i]);
      EXPECT_TRUE(holds(devices_[i], at[i], (3 - i) * page(), i + 1));
    }
    EXPECT_EQ(r->devices[1].notes.at(0).name, "step");
  }
  expect_nothing_there();
}

TEST(shares_of_threads, are_equal_and_at_least_one) {
  EXPECT_EQ(share_of_threads(64, 1), 64u);
  EXPECT_EQ(share_of_threads(8, 2), 4u);
  EXPECT_EQ(share_of_threads(8, 3), 2u);
  EXPECT_EQ(share_of_threads(2, 5), 1u);
  EXPECT_LE(share_of_threads(0, 1), 8u);
  EXPECT_EQ(share_of_threads(0, 1'000'000), 1u);
}

TEST_F(sets, a_set_of_one) {
  device_address at;
  {
    const growable_buffer a = memory(0, 2, 1);
    at = a.address();
    const auto all = parts();
    ASSERT_DONE(save_set(std::span(all).first(1), folder()));
  }
  give_back_pages();
  const auto r = restore_set(std::span(devices_).first(1), folder());
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(dev(), at, 2 * page(), 1));
}

TEST_F(sets, no_device_is_read_before_all_are_idle) {
  STILLMAP_NEEDS_HOSTCUDA();
  const growable_buffer a = memory(0, 1, 1), b = memory(1, 1, 2);
  auto busy = stream::create(devices_[1]);
  ASSERT_TRUE(busy);
  stillmap::testing::hold(busy->get());
  auto passes = fence::after(devices_[1], *busy);
  ASSERT_TRUE(passes);
  auto what = parts();
  what[0].idle = fence();  // it has passed
  what[1].idle = *passes;
  // The first read of any device finds the work of the second one finished.
  bool released = false, read_before = false;
  std::function<void()> release = [&] {
    released = true;
    stillmap::testing::release(busy->get());
  };
  std::function<void()> reading = [&] { read_before = !released; };
  hostcuda_control::before("cuEventSynchronize", 1, release);
  hostcuda_control::before("cuMemcpyDtoHAsync", 1, reading);
  const auto w = save_set(what, folder());
  hostcuda_control::stop_failing("cuEventSynchronize");
  hostcuda_control::stop_failing("cuMemcpyDtoHAsync");
  if (!released) stillmap::testing::release(busy->get());
  ASSERT_DONE(w);
  EXPECT_TRUE(released) << "the fence was waited for";
  EXPECT_FALSE(read_before);
}

TEST_F(sets, wrong_calls_change_nothing) {
  const growable_buffer a = memory(0, 1, 1), b = memory(1, 1, 2);
  const auto refused = [&](const result<written_set> &w, errc c) {
    ASSERT_FALSE(w);
    EXPECT_TRUE(w.error().is(c)) << w.error().message();
    EXPECT_EQ(files(), 0u) << w.error().message();
    EXPECT_FALSE(std::filesystem::exists(folder()));
  };
  refused(save_set({}, folder()), errc::invalid_argument);
  auto what = parts();
  what[1] = what[0];
  refused(save_set(what, folder()), errc::invalid_argument);
  what = parts();
  what[1].tags = {"nothing has this"};
  const auto no_tag = save_set(what, folder());
  refused(no_tag, errc::invalid_argument);
  EXPECT_NE(no_tag.error().detail().subject.find("device-1."), std::string::npos)
      << "it says of which part";
  ASSERT_DONE(saved());
  const auto images = image::open_set(folder());
  ASSERT_DONE(images);
  save_set_options options;
  options.parents = {images->front()};
  const auto w = saved(options, "b.stillmap");
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::invalid_argument)) << w.error().message();
  EXPECT_EQ(w.error().detail().where, "set at 0");
  EXPECT_EQ(w.error().detail().found, "1");
  EXPECT_EQ(w.error().detail().expected, "2");
  EXPECT_EQ(files("b.stillmap"), 0u);
}

TEST_F(sets, another_number_of_devices_is_refused) {
  {
    const growable_buffer a = memory(0, 1, 1), b = memory(1, 1, 2);
    ASSERT_DONE(saved());
  }
  give_back_pages();
  std::vector<device> three = devices_;
  three.push_back(dev());
  for (const std::span<const device> to :
       {std::span<const device>(devices_).first(1), std::span<const device>(three)}) {
    const auto r = restore_set(to, folder());
    ASSERT_FALSE(r);
    EXPECT_TRUE(r.error().is(errc::invalid_argument)) << r.error().message();
    EXPECT_EQ(r.error().detail().found, "2");
    EXPECT_EQ(r.error().detail().expected, std::to_string(to.size()));
  }
  three.clear();
  expect_nothing_there();
}

TEST_F(sets, where_one_address_is_taken_nothing_comes_back) {
  {
    const growable_buffer a = memory(0, 1, 1), b = memory(1, 1, 2);
    ASSERT_DONE(saved());
  }
  give_back_pages();
  {
    const growable_buffer in_the_way = memory(1, 1, 9);
    const auto r = restore_set(devices_, folder());
    ASSERT_FALSE(r);
    EXPECT_TRUE(r.error().is(errc::busy)) << r.error().message();
    EXPECT_NE(r.error().detail().subject.find("device-1."), std::string::npos)
        << r.error().message();
    EXPECT_EQ(devices_[0].space().stats().live_blocks, two_devices() ? 0u : 1u);
    EXPECT_TRUE(holds(devices_[1], in_the_way.address(), page(), 9));
  }
  give_back_pages();
  ASSERT_DONE(restore_set(devices_, folder()));
}

TEST_F(sets, one_bit_in_one_image_and_nothing_comes_back) {
  {
    const growable_buffer a = memory(0, 2, 1), b = memory(1, 2, 2);
    ASSERT_DONE(saved());
  }
  give_back_pages();
  const auto images = image::open_set(folder());
  ASSERT_DONE(images);
  const std::string path = (*images)[1].path();
  std::FILE *const f = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(f, nullptr);
  const auto at = static_cast<long>((*images)[1].chunks()[1].where + 777);
  std::fseek(f, at, SEEK_SET);
  const int was = std::fgetc(f);
  std::fseek(f, at, SEEK_SET);
  std::fputc(was ^ 4, f);
  std::fclose(f);
  const auto r = restore_set(devices_, folder());
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::corrupt)) << r.error().message();
  EXPECT_EQ(r.error().detail().subject, path);
  expect_nothing_there();
}

TEST_F(sets, some_of_the_tags_come_back) {
  {
    const growable_buffer a = memory(0, 1, 1), b = memory(1, 1, 2);
    ASSERT_DONE(saved());
  }
  give_back_pages();
  restore_options options;
  options.tags = {tags[1]};
  {
    const auto r = restore_set(devices_, folder(), options);
    ASSERT_DONE(r);
    EXPECT_EQ(r->devices[0].memory.bytes(), 0u);
    EXPECT_EQ(r->devices[1].memory.bytes(), page());
  }
  options.tags = {tags[1], "nothing"};
  const auto r = restore_set(devices_, folder(), options);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::invalid_argument)) << r.error().message();
  expect_nothing_there();
}

TEST_F(sets, only_what_changed_is_stored_again) {
  device_address at;
  {
    growable_buffer a = memory(0, 4, 1), b = memory(1, 4, 2);
    at = b.address();
    ASSERT_DONE(saved());
    const auto parents = image::open_set(folder());
    ASSERT_DONE(parents);
    put(devices_[1], at + page(), pattern(page(), 7));
    save_set_options options = replacing();
    options.parents = *parents;
    const auto over_its_parent = saved(options);
    ASSERT_FALSE(over_its_parent);
    EXPECT_TRUE(over_its_parent.error().is(errc::invalid_argument))
        << over_its_parent.error().message();
    const auto w = saved(options, "later.stillmap");
    ASSERT_DONE(w);
    EXPECT_EQ(w->images[0].stored_bytes, 0u);
    EXPECT_EQ(w->images[1].stored_bytes, page());
  }
  give_back_pages();
  EXPECT_FALSE(restore_set(devices_, folder("later.stillmap"))) << "its parents are elsewhere";
  restore_options options;
  options.image.parents = {folder()};
  const auto r = restore_set(devices_, folder("later.stillmap"), options);
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(devices_[1], at + page(), page(), 7));
  EXPECT_TRUE(holds(devices_[1], at, page(), 2));
}

TEST_F(sets, progress_is_reported_and_both_can_be_cancelled) {
  {
    const growable_buffer a = memory(0, 2, 1), b = memory(1, 3, 2);
    save_set_options options;
    std::uint64_t most[2] = {};
    options.on_progress = [&](const save_set_progress &p) {
      if (p.image.phase == image::write_phase::contents) {
        EXPECT_GE(p.image.bytes, most[p.part]);
        most[p.part] = p.image.bytes;
      }
    };
    ASSERT_DONE(saved(options));
    EXPECT_EQ(most[0], 2 * page());
    EXPECT_EQ(most[1], 3 * page());
    options = replacing();
    std::stop_source cancel;
    options.on_progress = [&](const save_set_progress &p) {
      if (p.part != 0) cancel.request_stop();
    };
    options.cancel = cancel.get_token();
    const auto w = saved(options);
    ASSERT_FALSE(w);
    EXPECT_EQ(w.error().code, std::errc::operation_canceled) << w.error().message();
    EXPECT_EQ(files(), 3u);
    ASSERT_DONE(image::open_set(folder()));
  }
  give_back_pages();
  restore_options options;
  std::uint64_t told = 0;
  options.on_progress = [&](const restore_progress &p) {
    EXPECT_GT(p.bytes, told);
    EXPECT_EQ(p.total_bytes, 5 * page());
    told = p.bytes;
  };
  {
    ASSERT_DONE(restore_set(devices_, folder(), options));
    EXPECT_EQ(told, 5 * page());
  }
  std::stop_source cancel;
  options.on_progress = [&](const restore_progress &) { cancel.request_stop(); };
  options.cancel = cancel.get_token();
  const auto r = restore_set(devices_, folder(), options);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, std::errc::operation_canceled);
  expect_nothing_there();
}

// ---- driver calls that fail in turn ----

// All calls but those that release resources, whose failures go to the error sink.
constexpr const char *driver_calls[] = {
    "cuMemAddressReserve", "cuMemCreate",        "cuMemMap",       "cuMemSetAccess",
    "cuMemGetInfo",        "cuMemHostAlloc",     "cuStreamCreate", "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",   "cuStreamSynchronize"};

TEST_F(sets, whatever_driver_call_is_refused_it_is_the_old_set_or_the_new_one) {
  STILLMAP_NEEDS_HOSTCUDA();
  const growable_buffer a = memory(0, 2, 1), b = memory(1, 2, 2);
  for (const bool replace : {false, true}) {
    image::image_id before;
    if (replace) {
      const auto old = saved();
      ASSERT_DONE(old);
      before = old->set;
    }
    const std::uint64_t failed = refuse_each(driver_calls, [&] {
      const auto w = saved(replace ? replacing() : save_set_options());
      const auto there = image::open_set(folder());
      EXPECT_EQ(there.has_value(), replace || w);
      EXPECT_EQ(files(), replace || w ? 3u : 0u);
      if (there) {
        EXPECT_EQ(there->front().superblock().set, w ? w->set : before);
        for (const image::reader &r : *there) EXPECT_TRUE(r.verify());
      }
      if (w) before = w->set;
      if (!replace) std::filesystem::remove_all(folder());
      return w.has_value();
    });
    EXPECT_GT(failed, 5u);
    std::filesystem::remove_all(folder());
  }
  EXPECT_TRUE(holds(devices_[1], b.address(), 2 * page(), 2));
}

TEST_F(sets, whatever_file_call_is_refused_it_is_the_old_set_or_none) {
  const growable_buffer a = memory(0, 1, 1), b = memory(1, 1, 2);
  std::size_t failed = 0;
  for (const bool replace : {false, true}) {
    if (!replace && !two_devices()) continue;  // half of it will do there: files know no device
    image::image_id before;
    if (replace) {
      const auto old = saved();
      ASSERT_DONE(old);
      before = old->set;
    }
    for (std::size_t n = 0;; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      checkpoint::refusing_files calls;
      calls.ring = false;
      calls.refuse_at = n;
      save_set_options options;
      options.image.replace = replace;
      options.image.files = &calls;
      const auto w = saved(options);
      const auto there = image::open_set(folder());
      EXPECT_EQ(there.has_value(), replace || w);
      if (there) {
        EXPECT_EQ(there->front().superblock().set, w ? w->set : before);
        for (const image::reader &r : *there) EXPECT_TRUE(r.verify());
      }
      failed += !w;
      if (w) before = w->set;
      const auto c = calls.refused();
      if (c != checkpoint::call::unlink && c != checkpoint::call::remove_folder &&
          !(w && c == checkpoint::call::open)) {
        EXPECT_EQ(files(), replace || w ? 3u : 0u);
      }
      if (!replace) std::filesystem::remove_all(folder());
      if (HasFailure()) return;
      if (calls.counted() <= n) break;
    }
  }
  EXPECT_GT(failed, 30u);
}

TEST_F(sets, whatever_driver_call_is_refused_nothing_is_half_restored) {
  STILLMAP_NEEDS_HOSTCUDA();
  {
    const growable_buffer a = memory(0, 2, 1), b = memory(1, 2, 2);
    ASSERT_DONE(saved());
  }
  give_back_pages();
  const std::uint64_t failed = refuse_each(driver_calls, [&] {
    {
      const auto r = restore_set(devices_, folder());
      if (r) return true;
    }
    expect_nothing_there();
    return false;
  });
  EXPECT_GT(failed, 12u);
  ASSERT_DONE(restore_set(devices_, folder()));
}

// ---- another process ----

// Run by the test below in a new process.
TEST_F(sets, DISABLED_in_a_fresh_process) {
  const char *const path = std::getenv("STILLMAP_TEST_SET");
  ASSERT_NE(path, nullptr);
  const auto r = restore_set(devices_, path);
  ASSERT_DONE(r);
  for (unsigned i = 0; i < 2; ++i) {
    const auto at = r->devices[i].memory.tagged(tags[i]).at(0).begin;
    EXPECT_EQ(at, device_address(stillmap::testing::far_away + i * (std::size_t{1} << 32)));
    EXPECT_TRUE(holds(devices_[i], at, 2 * page(), i + 1));
  }
}

TEST_F(sets, a_fresh_process_has_all_of_it) {
  const growable_buffer a = memory(0, 2, 1), b = memory(1, 2, 2);
  ASSERT_DONE(saved());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setenv("STILLMAP_TEST_SET", folder().c_str(), 1);
    ::unsetenv("XML_OUTPUT_FILE");
    ::unsetenv("GTEST_OUTPUT");
    ::unsetenv("TESTBRIDGE_TEST_ONLY");
    ::unsetenv("TEST_PREMATURE_EXIT_FILE");
    ::execl("/proc/self/exe", "sets", "--gtest_also_run_disabled_tests",
            "--gtest_filter=sets.DISABLED_in_a_fresh_process", "--gtest_brief=1", nullptr);
    ::_exit(127);
  }
  int wait_status = 0;
  ASSERT_EQ(::waitpid(child, &wait_status, 0), child);
  EXPECT_TRUE(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) << wait_status;
}

}  // namespace
}  // namespace stillmap::snapshot
