// Mapping while a stream captures.
#include <string>

#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class capture : public vmm_test {
 protected:
  // Captures `mode`, does what a growing buffer does, ends the capture, and cleans up.
  void map_while_capturing(CUstreamCaptureMode mode, const std::string &label) {
    stream s;
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp p = properties();
    const CUmemAccessDesc desc = access_for(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    reserved prepared_range(page);
    physical prepared(page);

    MUST(cu().StreamBeginCapture(s.handle, mode));
    const CUresult reserve = cu().MemAddressReserve(&at, page, 0, 0, 0);
    const CUresult create = cu().MemCreate(&handle, page, &p, 0);
    const CUresult map = cu().MemMap(prepared_range.at, page, 0, prepared.handle, 0);
    const CUresult set = cu().MemSetAccess(prepared_range.at, page, &desc, 1);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult asked = cu().StreamIsCapturing(s.handle, &status);
    CUgraph graph = nullptr;
    const CUresult end = cu().StreamEndCapture(s.handle, &graph);

    record(64, label + ": reserve " + name_of(reserve) + ", create " + name_of(create) + ", map " +
                   name_of(map) + ", set access " + name_of(set) + ", capture status " +
                   std::to_string(static_cast<int>(status)) + " (" + name_of(asked) + "), end " +
                   name_of(end));
    if (graph != nullptr) {
      EXPECT_EQ(cu().GraphDestroy(graph), CUDA_SUCCESS);
    }
    if (map == CUDA_SUCCESS) {
      EXPECT_EQ(cu().MemUnmap(prepared_range.at, page), CUDA_SUCCESS);
    }
    if (create == CUDA_SUCCESS) {
      EXPECT_EQ(cu().MemRelease(handle), CUDA_SUCCESS);
    }
    if (reserve == CUDA_SUCCESS) {
      EXPECT_EQ(cu().MemAddressFree(at, page), CUDA_SUCCESS);
    }
    // Whatever it said, nothing is left of the capture and all of it works now.
    mapped now(prepared_range.at, prepared);
    MUST(grant(prepared_range.at, page));
    write_pattern(prepared_range.at, page, 64);
    EXPECT_TRUE(holds_pattern(prepared_range.at, page, 64));
  }
};

TEST_F(capture, a64_mapping_during_global_capture) {
  IN_A_PROCESS_OF_ITS_OWN();
  map_while_capturing(CU_STREAM_CAPTURE_MODE_GLOBAL, "global");
}

TEST_F(capture, a64_mapping_during_relaxed_capture) {
  IN_A_PROCESS_OF_ITS_OWN();
  map_while_capturing(CU_STREAM_CAPTURE_MODE_RELAXED, "relaxed");
}

}  // namespace
}  // namespace stillmap::conformance
