// report_exportability on ranges in every state, compared with what the driver does.
#include "stillmap/vmm/exportability.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/physical_memory.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;

class exportability : public testing::buffer_test {
 protected:
  growable_buffer pages_of(page_pool_options options, std::size_t pages) const {
    auto pool = page_pool::create(dev(), options);
    if (!pool) throw std::runtime_error(pool.error().message());
    buffer_options with;
    with.reserve_bytes = 16 * page();
    with.pools.push_back(std::move(*pool));
    growable_buffer b = make(with);
    if (const status s = b.resize(pages * page()); !s) {
      throw std::runtime_error(s.error().message());
    }
    return b;
  }
  exportability_report of(const growable_buffer &b, std::size_t offset, std::size_t bytes) const {
    return report_exportability(dev(), {b.address() + offset, bytes});
  }
  static void expect(const exportability_report &r, sharing how, sharing_verdict verdict) {
    EXPECT_EQ(r[how].how, how);
    EXPECT_EQ(r[how].verdict, verdict) << name_of(how) << ": " << r[how].reason;
    EXPECT_STRNE(r[how].reason, "");
  }
  static void expect_all_refused(const exportability_report &r, device_address at) {
    for (const sharing_answer &a : r.answers) {
      EXPECT_EQ(a.verdict, sharing_verdict::refused) << name_of(a.how);
      EXPECT_EQ(a.at, at) << name_of(a.how);
    }
  }
};

TEST_F(exportability, asks_no_driver) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(3 * page()));
  const driver_counts before = counts();
  EXPECT_FALSE(of(b, 0, b.size()).text().empty());
  EXPECT_EQ((counts() - before).total(), 0u);
}

TEST_F(exportability, refuses_all_where_the_host_has_no_memory_to_examine_it) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(3 * page()));
  const testing::fail_host_allocation all(0, true);
  const exportability_report report = of(b, 0, b.size());
  EXPECT_TRUE(all.happened());
  expect_all_refused(report, b.address());
  EXPECT_STREQ(report[sharing::rdma].reason, "the host has no memory left to examine it");
}

TEST_F(exportability, ordinary_pages_go_nowhere_and_it_says_why) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(3 * page()));
  const exportability_report r = of(b, 0, 3 * page());
  EXPECT_EQ(r.mappings, 3u);
  EXPECT_EQ(r.mapped_bytes, 3 * page());
  EXPECT_EQ(r.missing_bytes + r.retiring_bytes + r.fallback_bytes, 0u);
  EXPECT_EQ(r.imported + r.aliased, 0u);
  EXPECT_FALSE(r.cut);
  EXPECT_EQ(r.generation, b.generation());
  expect_all_refused(r, b.address());
  for (const sharing_answer &a : r.answers) EXPECT_STRNE(a.advice, "") << name_of(a.how);
}

TEST_F(exportability, exportable_pages_go_one_by_one) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "this device exports no file descriptors";
  growable_buffer b = pages_of({.exportable = handle_type::posix_fd}, 3);
  const exportability_report three = of(b, 0, 3 * page());
  expect(three, sharing::posix_fd, sharing_verdict::in_parts);
  EXPECT_EQ(three[sharing::posix_fd].at, b.address() + page());
  expect(three, sharing::legacy_ipc, sharing_verdict::refused);
  expect(three, sharing::fabric, sharing_verdict::refused);
  const exportability_report one = of(b, page(), page());
  expect(one, sharing::posix_fd, sharing_verdict::works);
  // And so it is.
  const auto memory = physical_memory::retain(dev(), b.address() + page());
  ASSERT_TRUE(memory) << memory.error().message();
  EXPECT_TRUE(memory->export_fd());
}

TEST_F(exportability, part_of_a_page_is_no_handle) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "this device exports no file descriptors";
  growable_buffer b = pages_of({.exportable = handle_type::posix_fd}, 2);
  const exportability_report r = of(b, 0, page() + 1);
  EXPECT_TRUE(r.cut);
  EXPECT_EQ(r.mapped_bytes, page() + 1);
  expect(r, sharing::posix_fd, sharing_verdict::refused);
}

TEST_F(exportability, rdma_pages_register_one_by_one) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().rdma) {
    growable_buffer b = make();
    ASSERT_TRUE(b.resize(page()));
    expect(of(b, 0, page()), sharing::rdma, sharing_verdict::refused);
    return;
  }
  growable_buffer b = pages_of({.rdma = true}, 2);
  expect(of(b, 0, 2 * page()), sharing::rdma, sharing_verdict::in_parts);
  expect(of(b, 0, page()), sharing::rdma, sharing_verdict::works);
  expect(of(b, 100, page() - 200), sharing::rdma, sharing_verdict::works);  // any bytes of it
}

TEST_F(exportability, a_hole_is_named) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make({.reserve_bytes = 16 * page()});
  ASSERT_TRUE(b.commit(0, page()));
  ASSERT_TRUE(b.commit(2 * page(), page()));
  const exportability_report r = of(b, 0, 4 * page());
  EXPECT_EQ(r.mappings, 2u);
  EXPECT_EQ(r.missing_bytes, 2 * page());
  expect_all_refused(r, b.address() + page());
}

TEST_F(exportability, what_retires_is_nobodys_to_share) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make({.reserve_bytes = 16 * page()});
  ASSERT_TRUE(b.resize(3 * page()));
  {
    const stream s = make_stream();
    testing::hold(s.get());
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(driver().set_bytes_async(b.address(), 1, 3 * page(), s.get()));
    ASSERT_TRUE(b.decommit(page(), page(), after(s)));
    const exportability_report r = of(b, 0, 3 * page());
    EXPECT_EQ(r.retiring_bytes, page());
    EXPECT_EQ(r.mappings, 2u);
    EXPECT_EQ(r.missing_bytes, 0u);
    expect_all_refused(r, b.address() + page());
    testing::release(s.get());
    ASSERT_TRUE(s.synchronize());
  }
}

TEST_F(exportability, aliases_are_counted) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make({.reserve_bytes = 16 * page()});
  ASSERT_TRUE(b.resize(3 * page()));
  const auto ring = b.alias(0, 2 * page(), 2);
  ASSERT_TRUE(ring);
  EXPECT_EQ(of(b, 0, 3 * page()).aliased, 2u);
  EXPECT_EQ(of(*ring, 0, 4 * page()).aliased, 4u);
}

TEST_F(exportability, imported_pages_are_their_makers_to_export) {
  STILLMAP_NEEDS_VMM();
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "this device exports no file descriptors";
  physical_properties shared;
  shared.location = on_device(dev().ordinal());
  shared.exportable = handle_type::posix_fd;
  const auto made = physical_memory::create(dev(), page(), shared);
  ASSERT_TRUE(made);
  const auto fd = made->export_fd();
  ASSERT_TRUE(fd);
  auto imported = physical_memory::import_fd(dev(), *fd, page());
  ASSERT_TRUE(imported) << imported.error().message();
  const auto pool = page_pool::create(dev(), {.exportable = handle_type::posix_fd});
  ASSERT_TRUE(pool);
  auto adopted = (*pool)->adopt(std::move(*imported));
  ASSERT_TRUE(adopted);
  const auto at = reservation::create(dev(), page());
  ASSERT_TRUE(at);
  const auto mapped = mapping::create(*at, 0, std::move(*adopted));
  ASSERT_TRUE(mapped) << mapped.error().message();
  const exportability_report r = report_exportability(dev(), at->range());
  EXPECT_EQ(r.imported, 1u);
  expect(r, sharing::posix_fd, sharing_verdict::refused);
}

TEST_F(exportability, fallback_memory_has_legacy_ipc) {
  growable_buffer b = make({.force_copying = true});
  ASSERT_TRUE(b.resize(4_MiB));
  const exportability_report r = of(b, 0, b.capacity());
  EXPECT_EQ(r.mappings, 1u);
  EXPECT_EQ(r.fallback_bytes, b.capacity());
  EXPECT_EQ(r.mapped_bytes, 0u);
  EXPECT_FALSE(r.cut);
  expect(r, sharing::legacy_ipc, sharing_verdict::works);
  expect(r, sharing::rdma, sharing_verdict::works);
  expect(r, sharing::posix_fd, sharing_verdict::refused);
  expect(r, sharing::fabric, sharing_verdict::refused);
  const exportability_report part = of(b, 1_MiB, 1_MiB);
  EXPECT_TRUE(part.cut);
  expect(part, sharing::legacy_ipc, sharing_verdict::works);
  EXPECT_STRNE(part[sharing::legacy_ipc].advice, "");
}

TEST_F(exportability, nothing_is_refused_politely) {
  const exportability_report empty = report_exportability(dev(), {device_address(1_GiB), 0});
  for (const sharing_answer &a : empty.answers) {
    EXPECT_EQ(a.verdict, sharing_verdict::refused);
    EXPECT_STREQ(a.reason, "the range is empty");
  }
  const int local = 0;
  const device_address foreign(reinterpret_cast<std::uintptr_t>(&local));
  const exportability_report r = report_exportability(dev(), {foreign, 64});
  EXPECT_EQ(r.missing_bytes, 64u);
  EXPECT_EQ(r.mappings, 0u);
  expect_all_refused(r, foreign);
}

TEST_F(exportability, reads_as_a_line_for_each_way) {
  growable_buffer b = make({.force_copying = true});
  ASSERT_TRUE(b.resize(4_MiB));
  const std::string text = of(b, 0, b.capacity()).text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find("legacy IPC: works: it is one allocation\n"), std::string::npos) << text;
  EXPECT_NE(text.find("file descriptors: refused: "), std::string::npos) << text;
  const std::string advice = has_vmm()
                                 ? "make the buffer without force_copying, from an exportable pool"
                                 : "legacy IPC is what this device has";
  EXPECT_NE(text.find("cuMemAlloc has no such handle; " + advice + '\n'), std::string::npos)
      << text;
}

}  // namespace
}  // namespace stillmap
