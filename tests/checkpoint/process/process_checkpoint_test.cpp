// Processes prepared for a checkpoint and resumed: what is released, what comes back at which
// address, and what blocks a checkpoint.
#include "stillmap/checkpoint/process/process_checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/physical_memory.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"

namespace stillmap::process {
namespace {

using namespace literals;
using stillmap::testing::fails_with;
using stillmap::testing::get;
using stillmap::testing::holds;
using stillmap::testing::outcome;
using stillmap::testing::pattern;
using stillmap::testing::put;

class process_checkpoint_test : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    create_checkpoint();
  }
  void TearDown() override {
    checkpoint_.reset();
    buffer_test::TearDown();
  }
  void create_checkpoint() {
    auto made = process_checkpoint::create({dev()});
    ASSERT_TRUE(made) << made.error().message();
    checkpoint_ = std::move(*made);
  }
  process_checkpoint &checkpoint() { return *checkpoint_; }

  std::vector<blocker> blockers() const { return find_blockers({{dev()}}); }
  std::uint64_t device_free() const { return dev().memory()->free.bytes(); }

 private:
  std::unique_ptr<process_checkpoint> checkpoint_;
};

// Exported memory with its descriptor open.
struct shared_memory {
  explicit shared_memory(const device &d) {
    page_pool_options options;
    options.exportable = handle_type::posix_fd;
    options.keep_free = 0;
    auto made = page_pool::create(d, options);
    if (!made) throw std::runtime_error(made.error().message());
    pool = *made;
    auto own = physical_memory::create(d, pool->page_bytes(), pool->properties());
    if (!own) throw std::runtime_error(own.error().message());
    memory.emplace(std::move(*own));
    auto opened = memory->export_fd();
    if (!opened) throw std::runtime_error(opened.error().message());
    fd = std::move(*opened);
  }
  // Imports the descriptor and maps it, as another process would.
  mapping map(const device &d, const char *tag) {
    reservation_options where;
    where.tag = tag;
    const auto r = reservation::create(d, pool->page_bytes(), where);
    auto import = physical_memory::import_fd(d, fd, pool->page_bytes());
    if (!r || !import) throw std::runtime_error("import");
    auto page = pool->adopt(std::move(*import));
    auto m = mapping::create(*r, 0, std::move(*page));
    if (!m) throw std::runtime_error(m.error().message());
    return std::move(*m);
  }
  std::shared_ptr<page_pool> pool;
  std::optional<physical_memory> memory;
  exported_fd fd;
};

std::string target_of(int fd) {
  char to[256] = {};
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), to, sizeof to - 1);
  return n < 0 ? "" : to;
}

TEST_F(process_checkpoint_test, without_blockers_prepare_changes_nothing) {
  EXPECT_TRUE(blockers().empty());
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  const auto report = checkpoint().prepare();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(checkpoint().prepared());
  EXPECT_EQ(report->tags + report->bytes + report->imports + report->exports, 0u);
  EXPECT_TRUE(checkpoint().suspended().empty());
  EXPECT_TRUE(
      fails_with(outcome(checkpoint().prepare()), errc::busy, "process_checkpoint::prepare"));
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_FALSE(checkpoint().prepared());
  EXPECT_TRUE(checkpoint().resume());
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

TEST_F(process_checkpoint_test, evicted_tags_are_restored_at_their_addresses) {
  STILLMAP_NEEDS_VMM();
  growable_buffer weights = filled(5, "weights", 1);
  growable_buffer cache = filled(3, "cache", 2);
  ASSERT_TRUE(dev().pool()->trim());
  const std::uint64_t before = device_free();
  const auto report = checkpoint().prepare({.evict = {"weights"}});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->tags, 1u);
  EXPECT_EQ(report->bytes, 5 * page());
  EXPECT_EQ(report->released.bytes(), 5 * page());
  EXPECT_GE(device_free(), before + 5 * page());
  EXPECT_EQ(checkpoint().suspended().size(), 1u);
  EXPECT_TRUE(holds(dev(), cache.address(), 3 * page(), 2));
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_TRUE(holds(dev(), weights.address(), 5 * page(), 1));

  const auto all = checkpoint().prepare({.evict_everything = true});
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_EQ(all->tags, 2u);
  EXPECT_EQ(all->bytes, 8 * page());
  EXPECT_EQ(all->released.bytes(), 8 * page());
  EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_TRUE(holds(dev(), weights.address(), 5 * page(), 1));
  EXPECT_TRUE(holds(dev(), cache.address(), 3 * page(), 2));
}

TEST_F(process_checkpoint_test, failure_of_one_tag_undoes_the_others) {
  STILLMAP_NEEDS_VMM();
  growable_buffer weights = filled(4, "a", 1);
  growable_buffer other = filled(2, "b", 2);
  reservation_options elsewhere;
  elsewhere.tag = "c";
  const auto r = reservation::create(dev(), page(), elsewhere);
  ASSERT_TRUE(r);
  const auto shared = dev().space().mappings({other.address(), 1}).front().backing;
  auto second = mapping::create(*r, 0, shared);
  ASSERT_TRUE(second);
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare({.evict = {"a", "b"}})), errc::busy,
                         "process_checkpoint::prepare", other.address().value(), 0));
  EXPECT_FALSE(checkpoint().prepared());
  EXPECT_TRUE(checkpoint().suspended().empty());
  EXPECT_TRUE(holds(dev(), weights.address(), 4 * page(), 1));
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare({.evict = {"a", "unknown"}})),
                         errc::invalid_argument, "process_checkpoint::prepare"));
  EXPECT_TRUE(checkpoint().suspended().empty());
  EXPECT_TRUE(holds(dev(), weights.address(), 4 * page(), 1));
}

TEST_F(process_checkpoint_test, exported_descriptors_are_listed_and_closed) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "the device exports no file descriptors";
  shared_memory m(dev());
  const int fd = m.fd.get();
  ASSERT_EQ(blockers().size(), 1u);
  EXPECT_EQ(blockers()[0].kind, blocker_kind::exported_fd);
  EXPECT_EQ(blockers()[0].fd, fd);
  EXPECT_NE(describe(blockers()[0]).find(std::to_string(fd)), std::string::npos);
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare({.close_exports = false})), errc::busy,
                         "process_checkpoint::prepare", static_cast<std::uint64_t>(fd), 0));
  EXPECT_NE(target_of(fd), "/dev/null");
  const auto report = checkpoint().prepare();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->exports, 1u);
  EXPECT_EQ(target_of(fd), "/dev/null");
  EXPECT_TRUE(blockers().empty());
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_EQ(m.fd.get(), fd);
  // A new export works as before.
  const auto again = m.memory->export_fd();
  ASSERT_TRUE(again);
  EXPECT_TRUE(physical_memory::import_fd(dev(), *again, m.pool->page_bytes()));
}

TEST_F(process_checkpoint_test, a_moved_descriptor_is_listed_and_a_closed_one_is_not) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "the device exports no file descriptors";
  shared_memory m(dev());
  exported_fd moved = std::move(m.fd);
  EXPECT_EQ(exported_fds(), std::vector<int>{moved.get()});
  moved = exported_fd();
  EXPECT_TRUE(exported_fds().empty());
  m.fd = std::move(*m.memory->export_fd());
  EXPECT_EQ(exported_fds().size(), 1u);
  const owned_fd by_hand(m.fd.release());
  EXPECT_TRUE(exported_fds().empty());
}

TEST_F(process_checkpoint_test, memory_of_another_process_is_refused_with_its_address) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "the device exports no file descriptors";
  shared_memory m(dev());
  const mapping here = m.map(dev(), "theirs");
  m.fd = exported_fd();
  put(dev(), here.range().begin, pattern(page(), 7));
  ASSERT_EQ(blockers().size(), 1u);
  EXPECT_EQ(blockers()[0].kind, blocker_kind::imported);
  EXPECT_EQ(blockers()[0].range, here.range());
  EXPECT_NE(describe(blockers()[0]).find("theirs"), std::string::npos);
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare()), errc::not_supported,
                         "process_checkpoint::prepare", here.range().begin.value(), 0));
  EXPECT_TRUE(holds(dev(), here.range().begin, page(), 7));
  // A reference to the page prevents its eviction.
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare({.copy_imports = true})), errc::busy,
                         "process_checkpoint::prepare"));
  EXPECT_TRUE(holds(dev(), here.range().begin, page(), 7));
}

TEST_F(process_checkpoint_test, a_handle_that_is_mapped_nowhere_is_refused) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "the device exports no file descriptors";
  shared_memory m(dev());
  auto held = physical_memory::import_fd(dev(), m.fd, page());
  ASSERT_TRUE(held);
  std::optional<physical_memory> import(std::move(*held));
  ASSERT_EQ(blockers().size(), 2u);
  EXPECT_EQ(blockers()[0].kind, blocker_kind::imported_handle);
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare({.copy_imports = true})), errc::busy,
                         "process_checkpoint::prepare"));
  import.reset();
  {
    const mapping here = m.map(dev(), "theirs");
    const auto once_more = physical_memory::retain(dev(), here.range().begin);
    ASSERT_TRUE(once_more);
    EXPECT_EQ(dev().driver().imports().size(), 2u);
    ASSERT_EQ(blockers().size(), 3u);
    EXPECT_EQ(blockers()[0].kind, blocker_kind::imported);
    EXPECT_EQ(blockers()[1].kind, blocker_kind::imported_handle);
  }
  EXPECT_TRUE(dev().driver().imports().empty());
  EXPECT_TRUE(checkpoint().prepare());
  EXPECT_TRUE(checkpoint().resume());
}

TEST_F(process_checkpoint_test, a_device_without_vmm_cannot_evict) {
  if (has_vmm()) GTEST_SKIP() << "this device can map pages";
  growable_buffer b = filled(2, "a", 1);
  EXPECT_TRUE(fails_with(outcome(checkpoint().prepare({.evict = {"a"}})), errc::not_supported,
                         "process_checkpoint::prepare"));
  EXPECT_FALSE(checkpoint().prepared());
  EXPECT_TRUE(checkpoint().prepare({.evict_everything = true}));
  EXPECT_TRUE(checkpoint().resume());
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

// An imported page that only the ledger references, as after a handoff.
class with_an_import : public process_checkpoint_test {
 protected:
  void SetUp() override {
    process_checkpoint_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export)
      GTEST_SKIP() << "the device exports no file descriptors";
    m_.emplace(dev());
    buffer_options options;
    options.reserve_bytes = 16_MiB;
    options.tag = "imported";
    options.pools = {m_->pool};
    buffer_.emplace(make(std::move(options)));
    ASSERT_TRUE(buffer_->resize(page()));
    auto import = physical_memory::import_fd(dev(), m_->fd, page());
    ASSERT_TRUE(import);
    auto adopted = m_->pool->adopt(std::move(*import));
    ASSERT_TRUE(adopted);
    remap_plan plan({{on_device(dev().ordinal()), access_mode::read_write}});
    plan.unmap({buffer_->address(), page()});
    plan.map(buffer_->address(), *adopted);
    ASSERT_TRUE(dev().space().apply(std::move(plan)));
    page_ = std::move(*adopted);
    put(dev(), buffer_->address(), pattern(page(), 5));
  }
  void TearDown() override {
    page_ = page_ptr();
    buffer_.reset();
    m_.reset();
    process_checkpoint_test::TearDown();
  }
  // Drops all other owners, as after a handoff.
  void own_alone() {
    page_.set_imported(false);
    page_ = page_ptr();
    m_->memory.reset();
    m_->fd = exported_fd();
  }
  device_address at() const { return buffer_->address(); }

  std::optional<shared_memory> m_;
  std::optional<growable_buffer> buffer_;
  page_ptr page_;
};

TEST_F(with_an_import, handed_off_memory_is_replaced_by_private_memory) {
  own_alone();
  ASSERT_EQ(blockers().size(), 1u);
  EXPECT_EQ(blockers()[0].kind, blocker_kind::handed_off);
  const auto report = checkpoint().prepare();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->imports, 1u);
  EXPECT_TRUE(dev().driver().imports().empty());
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_TRUE(blockers().empty());
  EXPECT_TRUE(holds(dev(), at(), page(), 5));
  EXPECT_TRUE(dev().driver().imports().empty());
}

TEST_F(with_an_import, a_copied_import_is_private) {
  page_ = page_ptr();
  const mapping theirs = [&] {
    const auto r = reservation::create(dev(), page(), {});
    auto p = m_->pool->adopt(std::move(*m_->memory));
    return std::move(*mapping::create(*r, 0, std::move(*p)));
  }();
  EXPECT_TRUE(holds(dev(), theirs.range().begin, page(), 5));
  ASSERT_TRUE(checkpoint().prepare({.copy_imports = true}));
  EXPECT_TRUE(dev().driver().imports().empty());
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_TRUE(holds(dev(), at(), page(), 5));
  put(dev(), at(), pattern(page(), 6));
  EXPECT_TRUE(holds(dev(), theirs.range().begin, page(), 5));
}

TEST_F(process_checkpoint_test, resume_without_free_memory_can_be_repeated) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer a = filled(4, "a", 1);
  growable_buffer b = filled(4, "b", 2);
  ASSERT_TRUE(checkpoint().prepare({.evict_everything = true}));
  leave_free(4);
  const status s = checkpoint().resume();
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::out_of_memory)) << s.error().message();
  EXPECT_TRUE(checkpoint().prepared());
  EXPECT_EQ(checkpoint().suspended().size(), 1u);
  stillmap::testing::hostcuda_control::occupy(0, 0);
  ASSERT_TRUE(checkpoint().resume());
  EXPECT_TRUE(holds(dev(), a.address(), 4 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 2));
}

}  // namespace
}  // namespace stillmap::process
