#include "stillmap/allocators/report/heap_nvtx.h"

#if __has_include(<nvtx3/nvToolsExtMem.h>)
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtMem.h>

#include <map>
#include <string>

#include "stillmap/allocators/report/internal/text_out.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#endif

namespace stillmap {

#if __has_include(<nvtx3/nvToolsExtMem.h>)
namespace {

class nvtx_annotator final : public heap_observer {
 public:
  nvtx_annotator() : domain_(nvtxDomainCreateA("stillmap")) {}
  nvtx_annotator(const nvtx_annotator &) = delete;
  ~nvtx_annotator() override {
    for (const auto &[begin, h] : heaps_) nvtxMemHeapUnregister(domain_, h.handle);
    nvtxDomainDestroy(domain_);
  }

  bool on_event(const history_event &e) noexcept override {
    // What the host has no memory for stays unknown to the tool.
    const auto go_on = with_host_memory("nvtx_observer", [&]() -> result<bool> {
      if (e.action == history_action::reserve) return begin_heap(e);
      if (e.action == history_action::allocate) begin_region(e);
      if (e.action == history_action::free_completed) end_region(e);
      if (e.action == history_action::page_unmap) end_heap(e);
      return true;
    });
    return !go_on || *go_on;
  }

 private:
  struct heap {
    std::uint64_t end;
    nvtxMemHeapHandle_t handle;
  };

  static const void *pointer(std::uint64_t address) {
    return reinterpret_cast<const void *>(static_cast<std::uintptr_t>(address));
  }

  // False: no tool is attached.
  bool begin_heap(const history_event &e) {
    const std::string name = text::name_of(e.stream);
    const nvtxMemVirtualRangeDesc_t range{e.bytes, pointer(e.address)};
    nvtxMemHeapDesc_t what{};
    what.extCompatID = NVTX_EXT_COMPATID_MEM;
    what.structSize = sizeof(what);
    what.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    what.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    what.typeSpecificDescSize = sizeof(range);
    what.typeSpecificDesc = &range;
    what.messageType = NVTX_MESSAGE_TYPE_ASCII;
    what.message.ascii = name.c_str();
    const lock_guard lock(mutex_);
    const auto entry = heaps_.try_emplace(e.address).first;
    entry->second = {e.address + e.bytes, nvtxMemHeapRegister(domain_, &what)};
    if (entry->second.handle == nullptr) heaps_.erase(entry);
    return !heaps_.empty();
  }

  // Without VMM a heap is one allocation of the driver, and ends with its memory.
  void end_heap(const history_event &e) {
    nvtxMemHeapHandle_t gone = nullptr;
    {
      const lock_guard lock(mutex_);
      const auto at = heaps_.find(e.address);
      if (at == heaps_.end() || at->second.end != e.address + e.bytes) return;
      gone = at->second.handle;
      heaps_.erase(at);
    }
    nvtxMemHeapUnregister(domain_, gone);
  }

  nvtxMemHeapHandle_t heap_of(std::uint64_t address) {
    const lock_guard lock(mutex_);
    const auto after = heaps_.upper_bound(address);
    if (after == heaps_.begin()) return nullptr;
    const heap &h = std::prev(after)->second;
    return address < h.end ? h.handle : nullptr;
  }

  void begin_region(const history_event &e) {
    const nvtxMemHeapHandle_t in = heap_of(e.address);
    if (in == nullptr) return;
    const nvtxMemVirtualRangeDesc_t range{e.bytes, pointer(e.address)};
    nvtxMemRegionsRegisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof(batch);
    batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    batch.heap = in;
    batch.regionCount = 1;
    batch.regionDescElementSize = sizeof(range);
    batch.regionDescElements = &range;
    nvtxMemRegionsRegister(domain_, &batch);

    const std::string name = "block of " + format_bytes(e.bytes);
    nvtxMemRegionNameDesc_t named{};
    named.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    named.region.pointer = pointer(e.address);
    named.nameType = NVTX_MESSAGE_TYPE_ASCII;
    named.name.ascii = name.c_str();
    nvtxMemRegionsNameBatch_t names{};
    names.extCompatID = NVTX_EXT_COMPATID_MEM;
    names.structSize = sizeof(names);
    names.regionCount = 1;
    names.regionElementSize = sizeof(named);
    names.regionElements = &named;
    nvtxMemRegionsName(domain_, &names);
  }

  void end_region(const history_event &e) {
    if (heap_of(e.address) == nullptr) return;
    nvtxMemRegionRef_t block{};
    block.pointer = pointer(e.address);
    nvtxMemRegionsUnregisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof(batch);
    batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    batch.refCount = 1;
    batch.refElementSize = sizeof(block);
    batch.refElements = &block;
    nvtxMemRegionsUnregister(domain_, &batch);
  }

  const nvtxDomainHandle_t domain_;
  mutex mutex_;
  std::map<std::uint64_t, heap> heaps_ STILLMAP_GUARDED_BY(mutex_);  // by first address
};

}  // namespace

result<std::shared_ptr<heap_observer>> nvtx_observer() {
  return with_host_memory("nvtx_observer", []() -> result<std::shared_ptr<heap_observer>> {
    return std::make_shared<nvtx_annotator>();
  });
}

#else

result<std::shared_ptr<heap_observer>> nvtx_observer() {
  const operation_scope scope("nvtx_observer");
  return make_error(errc::not_supported, "built without NVTX's header nvtx3/nvToolsExtMem.h");
}

#endif

}  // namespace stillmap
