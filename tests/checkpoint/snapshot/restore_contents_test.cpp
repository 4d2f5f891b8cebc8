// Writing the contents of an image into memory that is mapped already: what it finds and what it refuses,
// with nothing changed.
#include "stillmap/checkpoint/snapshot/restore_contents.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"
#include "tests/support/gpu_test.h"
#include "tests/support/refuse_each.h"

namespace stillmap::snapshot {
namespace {

using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;
using stillmap::testing::refuse_each;

class contents : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    std::string name = ::testing::TempDir() + "/stillmap-contents-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    buffer_test::TearDown();
  }
  std::string file() const { return folder_ / "memory.smi"; }
  void saved(std::vector<std::string> tags, const image::write_options &how = {}) const {
    save_options options;
    options.image = how;
    ASSERT_DONE(save(dev(), tags, file(), options));
  }
  result<restored_contents> back(const restore_contents_options &options = {}) const {
    return restore_contents(dev(), file(), options);
  }
  // Refused before and while it is restored, for the same reason.
  void expect_refused(errc why, device_address at,
                      const restore_contents_options &options = {}) const {
    const auto from = image::reader::open(file(), options.image);
    ASSERT_DONE(from);
    const status before = check_mapped_as_saved(dev(), *from, options.tags);
    ASSERT_FALSE(before);
    EXPECT_TRUE(before.error().is(why)) << before.error().message();
    const auto r = back(options);
    ASSERT_FALSE(r);
    EXPECT_TRUE(r.error().is(why)) << r.error().message();
    EXPECT_EQ(r.error().value, at.value()) << r.error().message();
    EXPECT_NE(r.error().message().find(file()), std::string::npos) << r.error().message();
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(contents, come_back_and_what_is_beyond_the_image_stays) {
  growable_buffer weights = filled(5, "weights", 1), cache = filled(2, "cache", 2);
  growable_buffer other = filled(1, "other", 3);
  put(dev(), weights.address() + 2 * page(), std::vector<unsigned char>(page()));
  saved({"weights", "cache"});
  for (const auto *b : {&weights, &cache, &other}) {
    put(dev(), b->address(), pattern(b->size(), 9));
  }
  ASSERT_TRUE(weights.resize(6 * page()));
  put(dev(), weights.address() + 5 * page(), pattern(page(), 7));
  std::uint64_t told = 0;
  restore_contents_options options;
  options.on_progress = [&](const restore_progress &p) {
    EXPECT_EQ(p.total_bytes, 7 * page());
    told = p.bytes;
  };
  const address_space_stats before = dev().space().stats();
  const auto r = back(options);
  ASSERT_DONE(r);
  EXPECT_EQ(r->pages, 7u);
  EXPECT_EQ(r->bytes, 7 * page());
  EXPECT_EQ(r->image, image::reader::open(file())->superblock().image);
  EXPECT_EQ(told, 7 * page());
  EXPECT_TRUE(holds(dev(), weights.address(), 2 * page(), 1));
  EXPECT_EQ(stillmap::testing::get(dev(), weights.address() + 2 * page(), page()),
            std::vector<unsigned char>(page()));
  EXPECT_TRUE(holds(dev(), cache.address(), 2 * page(), 2));
  EXPECT_TRUE(holds(dev(), weights.address() + 5 * page(), page(), 7));
  EXPECT_TRUE(holds(dev(), other.address(), page(), 9));
  EXPECT_EQ(dev().space().stats().live_mappings, before.live_mappings);
  EXPECT_EQ(dev().space().stats().physical, before.physical);
}

TEST_F(contents, of_some_tags_come_back) {
  growable_buffer weights = filled(2, "weights", 1), cache = filled(2, "cache", 2);
  saved({"weights", "cache"});
  put(dev(), weights.address(), pattern(2 * page(), 8));
  put(dev(), cache.address(), pattern(2 * page(), 9));
  restore_contents_options options;
  options.tags = {"cache"};
  ASSERT_DONE(back(options));
  EXPECT_TRUE(holds(dev(), weights.address(), 2 * page(), 8));
  EXPECT_TRUE(holds(dev(), cache.address(), 2 * page(), 2));
  options.tags = {"nothing"};
  expect_refused(errc::invalid_argument, {}, options);
}

TEST_F(contents, of_a_page_at_several_addresses_are_written_once) {
  growable_buffer ring = filled(3, "shared", 1);
  auto twice = ring.alias(0, 3 * page(), 2);
  ASSERT_DONE(twice);
  saved({"shared"});
  put(dev(), ring.address(), pattern(3 * page(), 9));
  const driver_counts before = counts();
  const auto r = back();
  ASSERT_DONE(r);
  EXPECT_EQ(r->bytes, 3 * page());
  if (on_hostcuda()) {
    EXPECT_EQ((counts() - before).bytes_to_device, 3 * page());
  }
  EXPECT_TRUE(holds(dev(), ring.address(), 3 * page(), 1));
  EXPECT_TRUE(holds(dev(), twice->address() + 3 * page(), 3 * page(), 1));
}

TEST_F(contents, are_not_written_where_the_page_is_seen_elsewhere) {
  growable_buffer ring = filled(3, "shared", 1);
  saved({"shared"});
  const auto twice = ring.alias(0, 3 * page(), 1);  // of the same tag, since
  ASSERT_DONE(twice);
  put(dev(), ring.address(), pattern(3 * page(), 9));
  const auto r = back();
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::busy)) << r.error().message();
  EXPECT_EQ(r.error().value, ring.address().value());
  EXPECT_TRUE(holds(dev(), ring.address(), 3 * page(), 9));
}

// Two reservations of which the image has one page at each; here one page is at both.
TEST_F(contents, are_not_written_into_pages_that_were_not_shared) {
  std::optional<reservation> a, b;
  const auto map = [&](std::initializer_list<page_ptr> pages) {
    remap_plan plan({{on_device(dev().ordinal()), access_mode::read_write}});
    plan.map(a->range().begin, *pages.begin());
    plan.map(b->range().begin, *std::prev(pages.end()));
    ASSERT_TRUE(dev().space().apply(std::move(plan)));
  };
  const auto unmap = [&] {
    for (const reservation *r : {&*a, &*b}) {
      ASSERT_TRUE(dev().space().retire(r->block(), r->range(), {}));
    }
    dev().space().collect(true);
  };
  for (std::optional<reservation> *r : {&a, &b}) {
    auto made = reservation::create(dev(), page(), {.tag = "pair"});
    ASSERT_TRUE(made);
    r->emplace(std::move(*made));
  }
  for (const bool shared_when_saved : {false, true}) {
    std::vector<page_ptr> pages;
    ASSERT_TRUE(dev().pool()->acquire(2, pages));
    shared_when_saved ? map({pages[0]}) : map({pages[0], pages[1]});
    image::write_options replacing;
    replacing.replace = true;
    pages.clear();
    saved({"pair"}, replacing);
    unmap();
    ASSERT_TRUE(dev().pool()->acquire(2, pages));
    shared_when_saved ? map({pages[0], pages[1]}) : map({pages[0]});
    pages.clear();
    expect_refused(errc::invalid_argument, std::max(a->range().begin, b->range().begin));
    unmap();
  }
}

TEST_F(contents, are_refused_where_the_memory_is_gone) {
  std::optional<growable_buffer> b = filled(4, "b", 1);
  const device_address at = b->address();
  saved({"b"});
  put(dev(), at, pattern(2 * page(), 9));
  ASSERT_TRUE(b->resize(2 * page()));
  ASSERT_TRUE(b->shrink_to_fit());
  dev().space().collect(true);
  expect_refused(errc::invalid_argument, at + 2 * page());
  EXPECT_TRUE(holds(dev(), at, 2 * page(), 9));
  b.reset();
  dev().space().collect(true);
  expect_refused(errc::invalid_argument, at);
}

TEST_F(contents, are_refused_where_the_memory_has_another_tag_or_page_size) {
  const device_address at(stillmap::testing::far_away);
  const auto made = [&](const char *tag, std::size_t pages) {
    buffer_options options;
    options.hint = at;
    options.tag = tag;
    page_pool_options kind;
    kind.page_bytes = pages * page();
    kind.keep_free = 0;
    options.pools = {*page_pool::create(dev(), kind)};
    auto out = growable_buffer::create(dev(), std::move(options));
    EXPECT_TRUE(out && out->resize(4 * page()));
    EXPECT_EQ(out->address(), at);
    return std::move(*out);
  };
  {
    const growable_buffer b = made("b", 1);
    saved({"b"});
  }
  dev().space().collect(true);
  {
    const growable_buffer other = made("other", 1);
    expect_refused(errc::invalid_argument, at);
    const auto r = back();
    EXPECT_NE(r.error().message().find("other"), std::string::npos) << r.error().message();
  }
  dev().space().collect(true);
  const growable_buffer larger = made("b", 2);
  expect_refused(errc::invalid_argument, at);
}

TEST_F(contents, are_refused_where_the_memory_is_suspended) {
  const growable_buffer b = filled(2, "b", 1);
  saved({"b"});
  const auto s = checkpoint::suspender::create(dev());
  ASSERT_DONE(s);
  ASSERT_DONE((*s)->suspend("b"));
  expect_refused(errc::busy, b.address());
  ASSERT_DONE((*s)->resume("b"));
  ASSERT_DONE(back());
}

TEST_F(contents, are_refused_where_the_device_may_not_write) {
  auto block = reservation::create(dev(), page(), {.tag = "constant"});
  ASSERT_TRUE(block);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(dev().pool()->acquire(1, pages));
  remap_plan plan({{on_device(dev().ordinal()), access_mode::read_write}});
  plan.map(block->range().begin, pages[0]);
  ASSERT_TRUE(dev().space().apply(std::move(plan)));
  pages.clear();
  put(dev(), block->range().begin, pattern(page(), 4));
  remap_plan only_read({});
  only_read.grant(block->range(), {{on_device(dev().ordinal()), access_mode::read}});
  ASSERT_TRUE(dev().space().apply(std::move(only_read)));
  saved({"constant"});
  expect_refused(errc::not_supported, block->range().begin);
  EXPECT_TRUE(holds(dev(), block->range().begin, page(), 4));
  ASSERT_TRUE(dev().space().retire(block->block(), block->range(), {}));
}

TEST_F(contents, are_not_written_while_another_call_has_the_memory) {
  growable_buffer b = filled(2, "b", 1);
  saved({"b"});
  const std::vector<std::string> tags{"b"};
  {
    const auto lease = checkpoint::tag_lease::take(dev(), tags, checkpoint::lease_kind::shared);
    ASSERT_DONE(lease);
    const auto r = back();
    ASSERT_FALSE(r);
    EXPECT_TRUE(r.error().is(errc::busy)) << r.error().message();
  }
  ASSERT_DONE(back());
}

TEST_F(contents, of_an_encrypted_image_need_its_key) {
  growable_buffer b = filled(2, "b", 1);
  image::write_options how;
  how.key = image::make_secret_key().value();
  how.compress = image::codec::zstd;
  saved({"b"}, how);
  put(dev(), b.address(), pattern(2 * page(), 9));
  const auto closed = back();
  ASSERT_FALSE(closed);
  EXPECT_TRUE(closed.error().is(errc::invalid_argument)) << closed.error().message();
  restore_contents_options options;
  options.image.key = how.key;
  ASSERT_DONE(back(options));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

TEST_F(contents, of_a_damaged_image_are_not_written) {
  growable_buffer b = filled(3, "b", 1);
  saved({"b"});
  const auto whole = image::reader::open(file());
  ASSERT_DONE(whole);
  ASSERT_GE(whole->chunks().size(), 3u);
  std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(whole->chunks().back().where + 777);
  bytes.seekg(at);
  const char was = static_cast<char>(bytes.get());
  bytes.seekp(at);
  bytes.put(static_cast<char>(was ^ 4));
  bytes.close();
  put(dev(), b.address(), pattern(3 * page(), 9));
  const auto r = back();
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::corrupt)) << r.error().message();
  EXPECT_EQ(r.error().detail().cause, "");
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 9));
  restore_contents_options unchecked;
  unchecked.verify = false;
  unchecked.threads = 1;
  const auto half = back(unchecked);
  ASSERT_FALSE(half);
  EXPECT_TRUE(half.error().is(errc::corrupt)) << half.error().message();
  EXPECT_NE(half.error().detail().cause, "") << "it says that the contents are unspecified";
}

TEST_F(contents, stay_where_it_is_cancelled) {
  growable_buffer b = filled(3, "b", 1);
  saved({"b"});
  put(dev(), b.address(), pattern(3 * page(), 9));
  std::stop_source cancel;
  cancel.request_stop();
  restore_contents_options options;
  options.cancel = cancel.get_token();
  for (const bool verify : {true, false}) {
    options.verify = verify;
    const auto r = back(options);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, std::errc::operation_canceled);
  }
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 9));
}

TEST_F(contents, are_those_there_were_unless_an_error_says_otherwise) {
  STILLMAP_NEEDS_HOSTCUDA();
  constexpr const char *calls[] = {"cuCtxSynchronize",  "cuMemHostAlloc",  "cuStreamCreate",
                                   "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuStreamSynchronize"};
  growable_buffer b = filled(4, "b", 1);
  put(dev(), b.address() + 3 * page(), std::vector<unsigned char>(page()));
  saved({"b"});
  const address_space_stats before = dev().space().stats();
  std::uint64_t unspecified = 0;
  const std::uint64_t refused = refuse_each(calls, [&] {
    put(dev(), b.address(), pattern(4 * page(), 9));
    const auto r = back();
    EXPECT_EQ(dev().space().stats().live_mappings, before.live_mappings);
    EXPECT_EQ(dev().space().stats().physical, before.physical);
    if (r) {
      EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 1));
      return true;
    }
    if (r.error().detail().cause.empty()) {
      EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 9)) << r.error().message();
    } else {
      ++unspecified;
    }
    return false;
  });
  EXPECT_GT(refused, 5u);
  EXPECT_GT(unspecified, 3u);
  ASSERT_DONE(back());
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 1));
}

}  // namespace
}  // namespace stillmap::snapshot
