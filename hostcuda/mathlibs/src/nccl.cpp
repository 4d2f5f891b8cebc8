// libnccl: communicators know their size and rank; collectives succeed and move nothing.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 5, stand_in::not_initialized = 5;  // ncclInvalidUsage

namespace {
struct communicator {
  int ranks = 1, rank = 0;
};
struct registration {};  // of memory, which a collective that moves nothing does not need
struct unique_id {
  char bytes[128];
};
int create(communicator **out, int ranks, int rank) {
  if (const int failed = stand_in::create<communicator>(out); failed != 0) return failed;
  (*out)->ranks = ranks;
  (*out)->rank = rank;
  return 0;
}
}  // namespace

STAND_IN int ncclGetVersion(int *version) {
  *version = 22703;
  return 0;
}
STAND_IN const char *ncclGetErrorString(int) {
  return "error of hostcuda's stand-in of NCCL";
}
STAND_IN const char *ncclGetLastError(void *) {
  return "";
}
STAND_IN int ncclGetUniqueId(unique_id *id) {
  *id = {};
  return 0;
}
STAND_IN int ncclCommInitRank(communicator **out, int ranks, unique_id, int rank) {
  return create(out, ranks, rank);
}
STAND_IN int ncclCommInitRankConfig(communicator **out, int ranks, unique_id, int rank, void *) {
  return create(out, ranks, rank);
}
STAND_IN int ncclCommInitRankScalable(communicator **out, int ranks, int rank, int, unique_id *,
                                      void *) {
  return create(out, ranks, rank);
}
STAND_IN int ncclCommInitAll(communicator **out, int ranks, const int *) {
  for (int i = 0; i < ranks; ++i) {
    const int failed = create(out + i, ranks, i);
    if (failed == 0) continue;
    while (i-- > 0) delete out[i];
    return failed;
  }
  return 0;
}
STAND_IN int ncclCommDestroy(void *c) {
  return stand_in::destroy<communicator>(c);
}
STAND_IN int ncclCommAbort(void *c) {
  return stand_in::destroy<communicator>(c);
}
STAND_IN int ncclCommCount(const communicator *c, int *ranks) {
  *ranks = c->ranks;
  return 0;
}
STAND_IN int ncclCommUserRank(const communicator *c, int *rank) {
  *rank = c->rank;
  return 0;
}
STAND_IN int ncclCommGetAsyncError(const communicator *, int *error) {
  *error = 0;
  return 0;
}
STAND_IN int ncclCommRegister(void *, void *, std::size_t, void **handle) {
  return stand_in::create<registration>(handle);
}
STAND_IN int ncclCommDeregister(void *, void *handle) {
  return stand_in::destroy<registration>(handle);
}
STAND_IN_REFUSES(ncclCommGetUniqueId)
STAND_IN_REFUSES(ncclCommGrow)
STAND_IN_REFUSES(ncclCommMemStats)
STAND_IN_REFUSES(ncclCommShrink)
STAND_IN_REFUSES(ncclCommSplit)
STAND_IN_REFUSES(ncclCommWindowRegister)
STAND_IN_REFUSES(ncclDevCommCreate)
STAND_IN_REFUSES(ncclGetLsaMultimemDevicePointer)
STAND_IN_REFUSES(ncclGetPeerDevicePointer)
STAND_IN_REFUSES(ncclGroupSimulateEnd)
STAND_IN_REFUSES(ncclMemAlloc)
STAND_IN_REFUSES(ncclRedOpCreatePreMulSum)
STAND_IN_REFUSES(ncclWinGetUserPtr)

#include "hostcuda/mathlibs/src/nccl_names.h"
