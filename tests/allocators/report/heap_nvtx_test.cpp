// The NVTX observer: a tool that is linked into the test and attached through NVTX's function
// tables records the calls.
#include <gtest/gtest.h>

#if __has_include(<nvtx3/nvToolsExtMem.h>)
#define NVTX_AS_SYSTEM_HEADER
#define NVTX_STATIC_INJECTION_IMPL  // this program is the tool
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtMem.h>
#define STILLMAP_TEST_HAS_NVTX 1
#endif

#include <map>
#include <mutex>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/report/heap_nvtx.h"
#include "tests/support/buffer_test.h"

#ifdef STILLMAP_TEST_HAS_NVTX

namespace {

struct region {
  std::size_t bytes = 0;
  const void *heap = nullptr;
  std::string name;
};
struct tool {
  std::mutex mutex;
  bool listens = true;
  std::map<const void *, region> heaps, regions;  // by handle; by address
  std::size_t made = 0, ended = 0, strays = 0;
};
tool &the_tool() {
  static tool t;
  return t;
}

nvtxMemHeapHandle_t on_heap(nvtxDomainHandle_t, const nvtxMemHeapDesc_t *d) {
  tool &t = the_tool();
  const std::lock_guard lock(t.mutex);
  if (!t.listens) return nullptr;
  const auto *range = static_cast<const nvtxMemVirtualRangeDesc_t *>(d->typeSpecificDesc);
  if (d->extCompatID != NVTX_EXT_COMPATID_MEM || d->structSize != sizeof(*d) ||
      d->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR ||
      d->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS || d->typeSpecificDescSize != sizeof(*range)) {
    ++t.strays;
  }
  void *const handle = const_cast<void *>(range->ptr);
  t.heaps[handle] = {range->size, handle, d->message.ascii};
  return static_cast<nvtxMemHeapHandle_t>(handle);
}
void on_heap_end(nvtxDomainHandle_t, nvtxMemHeapHandle_t h) {
  tool &t = the_tool();
  const std::lock_guard lock(t.mutex);
  if (t.heaps.erase(h) != 1) ++t.strays;
}
void on_regions(nvtxDomainHandle_t, const nvtxMemRegionsRegisterBatch_t *b) {
  tool &t = the_tool();
  const std::lock_guard lock(t.mutex);
  const auto *range = static_cast<const nvtxMemVirtualRangeDesc_t *>(b->regionDescElements);
  if (b->regionCount != 1 || t.heaps.count(b->heap) != 1) ++t.strays;
  const bool fresh = t.regions.emplace(range->ptr, region{range->size, b->heap, ""}).second;
  if (!fresh) ++t.strays;
  ++t.made;
}
void on_regions_end(nvtxDomainHandle_t, const nvtxMemRegionsUnregisterBatch_t *b) {
  tool &t = the_tool();
  const std::lock_guard lock(t.mutex);
  if (b->refType != NVTX_MEM_REGION_REF_TYPE_POINTER) ++t.strays;
  if (t.regions.erase(b->refElements->pointer) != 1) ++t.strays;
  ++t.ended;
}
void on_names(nvtxDomainHandle_t, const nvtxMemRegionsNameBatch_t *b) {
  tool &t = the_tool();
  const std::lock_guard lock(t.mutex);
  t.regions[b->regionElements->region.pointer].name = b->regionElements->name.ascii;
}

template <class Function>
void attach(const nvtxExtModuleInfo_t *m, int slot, Function *f) {
  m->segments[0].functionSlots[slot] = reinterpret_cast<std::intptr_t>(f);
}

int attach_to(nvtxExtModuleInfo_t *m) {
  if (m->moduleId != NVTX_EXT_MODULEID_MEM || m->segmentsCount != 1) return 0;
  attach(m, NVTX3EXT_CBID_nvtxMemHeapRegister, &on_heap);
  attach(m, NVTX3EXT_CBID_nvtxMemHeapUnregister, &on_heap_end);
  attach(m, NVTX3EXT_CBID_nvtxMemRegionsRegister, &on_regions);
  attach(m, NVTX3EXT_CBID_nvtxMemRegionsUnregister, &on_regions_end);
  attach(m, NVTX3EXT_CBID_nvtxMemRegionsName, &on_names);
  return 1;
}

}  // namespace

// Where NVTX looks for a tool that is part of the program.
extern "C" {
extern NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr;
NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr = &attach_to;
}

#endif

namespace stillmap {
namespace {

using namespace literals;

#ifndef STILLMAP_TEST_HAS_NVTX

TEST(Nvtx, WithoutItsHeadersItSaysSo) {
  const auto made = nvtx_observer();
  ASSERT_FALSE(made);
  EXPECT_TRUE(made.error().is(errc::not_supported));
}

#else

class nvtx : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    tool &t = the_tool();
    t.listens = true;
    t.heaps.clear();
    t.regions.clear();
    t.made = t.ended = t.strays = 0;
    auto observer = nvtx_observer();
    ASSERT_TRUE(observer);
    caching_allocator_options o;
    o.observer = std::move(*observer);
    heap_ = std::move(*caching_allocator::create(dev(), o));
  }
  void TearDown() override {
    heap_.reset();
    buffer_test::TearDown();
  }
  std::unique_ptr<caching_allocator> heap_;
};

TEST_F(nvtx, every_block_is_a_region_of_its_streams_heap) {
  tool &t = the_tool();
  const stream s = make_stream(), other = make_stream();
  void *const large = *heap_->allocate(3_MiB + 5, s);
  void *const small = *heap_->allocate(100, s);
  void *const elsewhere = *heap_->allocate(1_MiB, other);
  ASSERT_EQ(t.heaps.size(), 3u) << "small blocks have addresses of their own";
  ASSERT_EQ(t.regions.size(), 3u);
  EXPECT_EQ(t.regions[large].bytes, 3_MiB + 5);
  EXPECT_EQ(t.regions[small].bytes, 100u);
  EXPECT_NE(t.regions[large].heap, t.regions[small].heap);
  EXPECT_NE(t.regions[large].heap, t.regions[elsewhere].heap);
  EXPECT_EQ(t.regions[elsewhere].name, "block of 1 MiB");
  EXPECT_EQ(t.heaps[t.regions[large].heap].name.rfind("stream 0x", 0), 0u);
  const heap_map drawn = heap_->map().value();
  for (const auto &a : drawn.arenas) {
    EXPECT_EQ(t.heaps[a.reserved[0].begin.pointer()].bytes, a.reserved[0].bytes);
  }
  ASSERT_TRUE(heap_->free(small));
  EXPECT_EQ(t.regions.count(small), 0u);
  ASSERT_TRUE(heap_->record_use(large, other));
  ASSERT_TRUE(heap_->free(large));
  EXPECT_EQ(t.regions.count(large), 1u) << "the other stream may still be using it";
  ASSERT_TRUE(after(other).wait());
  ASSERT_TRUE(heap_->empty_cache());
  EXPECT_EQ(t.regions.count(large), 0u);
  ASSERT_TRUE(heap_->free(elsewhere));
  EXPECT_FALSE(heap_->records_history());
  heap_.reset();
  EXPECT_TRUE(t.heaps.empty());
  EXPECT_EQ(t.made, t.ended);
  EXPECT_EQ(t.strays, 0u);
}

TEST_F(nvtx, where_nobody_listens_it_is_silent) {
  the_tool().listens = false;
  const stream s = make_stream();
  void *const block = *heap_->allocate(1_MiB, s);
  the_tool().listens = true;
  ASSERT_TRUE(heap_->free(block));
  EXPECT_EQ(the_tool().made, 0u);
  EXPECT_EQ(the_tool().ended, 0u);
  // History is no less recorded.
  ASSERT_TRUE(heap_->record_history());
  ASSERT_TRUE(heap_->free(*heap_->allocate(1_MiB, s)));
  EXPECT_EQ(heap_->history()->events.size(), 3u);
}

#endif

}  // namespace
}  // namespace stillmap
