// Compares the number of driver calls of each operation with tests/vmm/golden: the cost on a GPU, exact
// and measured without one. STILLMAP_UPDATE_GOLDEN=1 rewrites the files.
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/device_vector.h"
#include "tests/support/buffer_test.h"
#include "tests/support/golden.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::hold;
using testing::release;

void must(const status &s) {
  if (!s) throw std::runtime_error(s.error().message());
}

std::string listed(const driver_counts &spent) {
  std::ostringstream out;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (spent.calls[i] == 0) continue;
    out << "  " << name_of(static_cast<driver_call>(i)) << ' ' << spent.calls[i] << '\n';
  }
  if (spent.bytes_on_device != 0) out << "  bytes on device " << spent.bytes_on_device << '\n';
  return out.str().empty() ? "  nothing\n" : out.str();
}

class golden_calls : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    // Event and page pools as they are in a program that has been running: an event to reuse.
    const stream s = make_stream();
    must(after(s).wait());
  }

  driver_counts spent_by(const std::function<void()> &operation) {
    const driver_counts before = counts();
    const std::uint64_t calls = testing::hostcuda_control::calls(nullptr);
    operation();
    const driver_counts spent = counts() - before;
    EXPECT_EQ(testing::hostcuda_control::calls(nullptr) - calls, spent.total())
        << "a driver call that the seam did not make";
    return spent;
  }
  driver_counts note(const std::string &what, const std::function<void()> &operation) {
    const driver_counts spent = spent_by(operation);
    found_ << what << '\n' << listed(spent);
    return spent;
  }

  void compare(const std::string &file) {
    testing::expect_golden("tests/vmm/golden/" + file, found_.str());
  }

  growable_buffer reserving(std::size_t pages) const {
    buffer_options options;
    options.reserve_bytes = pages * page();
    return make(options);
  }

  std::ostringstream found_;
};

TEST_F(golden_calls, of_buffers_made_of_pages) {
  STILLMAP_NEEDS_VMM();
  std::optional<growable_buffer> a;
  note("create", [&] { a = reserving(64); });
  driver_counts spent = note("grow by 4 pages, cold", [&] { must(a->resize(4 * page())); });
  EXPECT_LE(spent[driver_call::MemMap], 4u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 1u);
  spent = note("grow within capacity", [&] {
    must(a->resize(2 * page()));
    must(a->resize(4 * page()));
  });
  EXPECT_EQ(spent.total(), 0u);
  must(a->resize(page()));
  spent = note("shrink by 3 pages", [&] { must(a->shrink_to_fit()); });
  EXPECT_EQ(spent[driver_call::MemCreate], 0u);
  EXPECT_EQ(spent[driver_call::MemRelease], 0u);
  EXPECT_EQ(spent[driver_call::MemUnmap], 1u);
  spent = note("grow by 3 pages, warm", [&] { must(a->resize(4 * page())); });
  EXPECT_EQ(spent[driver_call::MemCreate], 0u);
  EXPECT_LE(spent[driver_call::MemMap], 3u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 1u);
  note("grow by 1 page, cold", [&] { must(a->resize(5 * page())); });
  note("grow by 20 pages, cold", [&] { must(a->resize(25 * page())); });

  const stream s = make_stream();
  hold(s.get());
  const fence busy = after(s);
  must(a->resize(4 * page()));
  note("shrink by 21 pages under a fence", [&] { must(a->shrink_to_fit(busy)); });
  spent = note("grow by 21 pages, reviving", [&] { must(a->resize(25 * page(), s)); });
  EXPECT_EQ(spent[driver_call::MemMap], 0u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 0u);
  release(s.get());
  must(s.synchronize());
  must(a->resize(4 * page()));
  must(a->shrink_to_fit());

  note("commit 3 pages sparsely", [&] { must(a->commit(10 * page(), 3 * page())); });
  note("commit over 2 gaps", [&] { must(a->commit(4 * page(), 12 * page())); });
  note("decommit 8 of 16 pages in 1 run", [&] { must(a->decommit(8 * page(), 8 * page())); });
  std::optional<growable_buffer> twin, child;
  note("alias 2 pages twice", [&] { twin = std::move(*a->alias(0, 2 * page(), 2)); });
  note("close an alias", [&] { must(twin->close(fence())); });
  growable_buffer b = reserving(16);
  must(b.resize(8 * page()));
  note("fork 8 pages", [&] { child = std::move(*b.fork()); });
  spent = note("make_writable of 2 shared pages",
               [&] { must(child->make_writable(0, 2 * page(), s)); });
  EXPECT_EQ(spent.bytes_on_device, 2 * page());
  note("make_writable of what is writable", [&] { must(child->make_writable(0, 1, s)); });
  must(child->close(fence()));
  spent = note("make_writable of 8 pages nobody shares any more",
               [&] { must(b.make_writable(0, 8 * page(), s)); });
  EXPECT_EQ(spent.bytes_on_device, 0u);
  growable_buffer c = reserving(16);
  spent = note("splice 4 pages", [&] { must(b.splice(4 * page(), 4 * page(), c, 0, fence())); });
  EXPECT_EQ(spent.bytes_on_device, 0u);
  note("destroy a buffer of 4 pages", [&] { const growable_buffer gone = std::move(c); });
  note("close an empty buffer", [&] {
    growable_buffer empty = reserving(1);
    must(empty.close(fence()));
  });
  compare("pages.txt");
}

TEST_F(golden_calls, of_buffers_made_of_copies) {
  buffer_options options;
  options.force_copying = true;
  std::optional<growable_buffer> a;
  note("create", [&] { a = make(options); });
  note("grow to 4 pages", [&] { must(a->resize(4 * page())); });
  note("grow within capacity", [&] { must(a->resize(3 * page())); });
  const driver_counts spent = note("grow to 5 pages", [&] { must(a->resize(5 * page())); });
  EXPECT_EQ(spent.bytes_on_device, 3 * page()) << "what growing by copying costs";
  note("shrink to 5 of 8 pages", [&] { must(a->shrink_to_fit()); });
  note("fork", [&] { must(testing::outcome(a->fork())); });
  note("close", [&] { must(a->close(fence())); });
  compare("copies.txt");
}

TEST_F(golden_calls, of_vectors) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  vector_options options;
  options.buffer.reserve_bytes = 64 * page();
  options.staging_bytes = 8192;
  std::optional<device_vector<std::uint32_t>> v;
  note("create",
       [&] { v = std::move(*device_vector<std::uint32_t>::create(dev(), std::move(options), s)); });
  note("push_back, the first", [&] { must(v->push_back(1)); });
  EXPECT_EQ(note("push_back, 1000 more into the same batch",
                 [&] {
                   for (std::uint32_t i = 0; i < 1000; ++i) must(v->push_back(i));
                 })
                .total(),
            0u);
  // The halves of the staging memory alternate; each is free again by the time it is wanted.
  note("push_back, 100 batches within capacity", [&] {
    for (std::uint32_t i = 0; i < 100; ++i) {
      for (std::uint32_t j = 0; j < 1024; ++j) must(v->push_back(j));
      must(s.synchronize());
    }
  });
  const std::vector<std::uint32_t> some(1000, 7), many((3 * page()) / 4, 9);
  note("flush", [&] { must(v->flush()); });
  note("append 1000 elements within capacity", [&] { must(v->append(some)); });
  note("append 3 pages, cold", [&] { must(v->append(many)); });
  note("append_async 1000 elements within capacity", [&] { must(v->append_async(some)); });
  must(v->synchronize());
  note("get", [&] { must(testing::outcome(v->get(3))); });
  note("set", [&] { must(v->set(3, 1)); });
  note("resize within capacity, to zeros", [&] { must(v->resize(v->size() + 100)); });
  // How often their scratch memory asks for events depends on how far the stream is.
  driver_counts spent = spent_by([&] { must(v->erase(3, 10)); });
  EXPECT_EQ(spent.bytes_on_device, 2 * (v->size() - 3) * 4) << "to the scratch memory and back";
  spent = spent_by([&] { must(v->insert(3, std::span(some).first(10))); });
  EXPECT_EQ(spent.bytes_on_device, 2 * (v->size() - 13) * 4);
  note("pop_back", [&] { must(v->pop_back()); });
  note("clear", [&] { must(v->clear()); });
  note("assign 1000 elements", [&] { must(v->assign(some)); });
  compare("vectors.txt");
}

class golden_scale : public testing::buffer_test {};

// Growing by one page costs the same whatever there is already.
TEST_F(golden_scale, growing_16_gib_by_a_page_calls_what_growing_16_mib_does) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  restart_as("profile=h200,unbacked");
  std::vector<std::string> found;
  for (const std::size_t bytes : {16_MiB, 16_GiB}) {
    growable_buffer b = make();
    must(b.resize(bytes));
    const driver_counts before = counts();
    must(b.resize(bytes + page()));
    found.push_back(listed(counts() - before));
  }
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace stillmap
