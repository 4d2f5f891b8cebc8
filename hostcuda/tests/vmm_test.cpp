// Virtual memory management: rules for reserve, create, map and access.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class vmm : public machine_test {
 protected:
  static CUmemAllocationProp device_prop(CUdevice device = 0) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
  }

  static CUresult grant(CUdeviceptr at, std::size_t bytes, CUmemAccess_flags flags,
                        CUdevice device = 0) {
    CUmemAccessDesc d{};
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.location.id = device;
    d.flags = flags;
    return cuMemSetAccess(at, bytes, &d, 1);
  }

  static hostcuda_counters numbers() {
    hostcuda_counters c{};
    EXPECT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
    return c;
  }

  // Maps `pages` accessible pages at consecutive addresses, and releases their handles.
  static CUdeviceptr mapped(std::size_t pages) {
    const CUdeviceptr at = reserve(pages * kPage);
    for (std::size_t i = 0; i < pages; ++i) {
      const auto h = create(kPage);
      EXPECT_EQ(cuMemMap(at + i * kPage, kPage, 0, h, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    }
    EXPECT_EQ(grant(at, pages * kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
    return at;
  }
};

TEST_F(vmm, ReservationsAreAlignedAndHintsHonoured) {
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, std::size_t{1} << 40, std::size_t{1} << 30, 0, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(at % (std::size_t{1} << 30), 0U);
  ASSERT_EQ(cuMemAddressFree(at, std::size_t{1} << 40), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  ASSERT_EQ(cuMemAddressReserve(&again, 4 * kPage, 0, at, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, at);
  CUdeviceptr other = 0;
  ASSERT_EQ(cuMemAddressReserve(&other, 4 * kPage, 0, at, 0), CUDA_SUCCESS);
  EXPECT_NE(other, at);
}

TEST_F(vmm, BadReservationsAreRefused) {
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAddressReserve(nullptr, kPage, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&at, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&at, kPage + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&at, kPage, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&at, kPage, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&at, std::size_t{1} << 50, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  at = reserve(2 * kPage);
  EXPECT_EQ(cuMemAddressFree(at, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(at, 2 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(at, 2 * kPage), CUDA_ERROR_INVALID_VALUE);
}

// As programs do that leave less memory to others.
TEST_F(vmm, MoreThanAGibibyteIsFilledWhereItIsMapped) {
  const std::size_t bytes = (std::size_t{1} << 30) + kPage;
  const auto before = numbers();
  const auto unused = create(bytes);
  ASSERT_EQ(cuMemRelease(unused), CUDA_SUCCESS);
  EXPECT_EQ(numbers().first_touch_ns, before.first_touch_ns);
  for (int round = 0; round < 2; ++round) {
    const CUdeviceptr at = reserve(bytes);
    const auto used = create(bytes);
    ASSERT_EQ(cuMemMap(at, bytes, 0, used, 0), CUDA_SUCCESS);
    ASSERT_EQ(grant(at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
    unsigned got = 1;
    ASSERT_EQ(cuMemcpyDtoH(&got, at + bytes - 4, 4), CUDA_SUCCESS);
    EXPECT_EQ(got, 0U) << round;
    ASSERT_EQ(cuMemsetD8(at + bytes - 4, 0xaa, 4), CUDA_SUCCESS);
    ASSERT_EQ(cuMemUnmap(at, bytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemRelease(used), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAddressFree(at, bytes), CUDA_SUCCESS);
  }
}

TEST_F(vmm, CreationChargesExactlyItsSize) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  ASSERT_EQ(cuMemGetInfo(&before, &total), CUDA_SUCCESS);
  const auto h = create(3 * kPage);
  ASSERT_EQ(cuMemGetInfo(&after, &total), CUDA_SUCCESS);
  EXPECT_EQ(before - after, 3 * kPage);
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetInfo(&after, &total), CUDA_SUCCESS);
  EXPECT_EQ(before, after);
}

TEST_F(vmm, BadCreationsAreRefused) {
  CUmemGenericAllocationHandle h = 0;
  CUmemAllocationProp p = device_prop();
  EXPECT_EQ(cuMemCreate(&h, 0, &p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&h, kPage + 4096, &p, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&h, kPage, &p, 1), CUDA_ERROR_INVALID_VALUE);
  p.location.id = 7;
  EXPECT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_ERROR_INVALID_DEVICE);
  p = device_prop();
  p.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(8);  // fabric, no IMEX
  EXPECT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_ERROR_NOT_PERMITTED);
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
  EXPECT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(numbers().live_handles, 0U);
}

TEST_F(vmm, MappingOutsideOrOverOrInPartIsRefused) {
  const CUdeviceptr at = reserve(4 * kPage);
  const auto h = create(kPage);
  const auto big = create(2 * kPage);
  EXPECT_EQ(cuMemMap(at, kPage, kPage, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at, kPage, 0, big, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(at, 2 * kPage, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at + 3 * kPage, 2 * kPage, 0, big, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at + 4096, kPage, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at + kPage, kPage, 0, h, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(at, 2 * kPage, 0, big, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at + kPage, kPage, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(at, 4 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(numbers().live_mappings, 1U);
}

TEST_F(vmm, OneHandleAtTwoAddressesIsTheSameMemory) {
  const CUdeviceptr at = reserve(2 * kPage);
  const auto h = create(kPage);
  map(at, h, kPage);
  map(at + kPage, h, kPage);
  ASSERT_EQ(cuMemsetD8(at, 0x5A, kPage), CUDA_SUCCESS);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at + 2 * kPage - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 0x5A);
}

TEST_F(vmm, NewPagesAreZeroEvenAfterReuse) {
  for (int round = 0; round < 3; ++round) {
    const CUdeviceptr at = mapped(4);
    std::vector<unsigned char> bytes(4 * kPage, 1);
    ASSERT_EQ(cuMemcpyDtoH(bytes.data(), at, bytes.size()), CUDA_SUCCESS);
    EXPECT_EQ(std::vector<unsigned char>(4 * kPage, 0), bytes);
    ASSERT_EQ(cuMemsetD32(at, 0xFFFFFFFFU, kPage), CUDA_SUCCESS);
    ASSERT_EQ(cuMemUnmap(at, 4 * kPage), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAddressFree(at, 4 * kPage), CUDA_SUCCESS);
  }
  EXPECT_EQ(numbers().physical_bytes, 0U);
}

TEST_F(vmm, AccessIsEnforcedOnCopies) {
  const CUdeviceptr at = reserve(2 * kPage);
  const auto h = create(kPage);
  const auto second = create(kPage);
  ASSERT_EQ(cuMemMap(at, kPage, 0, h, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at + kPage, kPage, 0, second, 0), CUDA_SUCCESS);
  std::vector<char> host(2 * kPage);
  EXPECT_EQ(cuMemcpyHtoD(at, host.data(), kPage), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(grant(at, 2 * kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(at, host.data(), 2 * kPage), CUDA_SUCCESS);
  ASSERT_EQ(grant(at + kPage, kPage, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(at, host.data(), 2 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(host.data(), at, 2 * kPage), CUDA_SUCCESS);
  ASSERT_EQ(grant(at, kPage, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(host.data(), at, 1), CUDA_ERROR_INVALID_VALUE);
  unsigned long long flags = 9;
  CUmemLocation where{};
  where.type = CU_MEM_LOCATION_TYPE_DEVICE;
  ASSERT_EQ(cuMemGetAccess(&flags, &where, at + kPage), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READ));
}

TEST_F(vmm, RemappingTakesAccessAway) {
  const CUdeviceptr at = reserve(kPage);
  const auto h = create(kPage);
  map(at, h, kPage);
  ASSERT_EQ(cuMemUnmap(at, kPage), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, kPage, 0, h, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(at, 1, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(vmm, BadAccessRequestsChangeNothing) {
  const CUdeviceptr at = reserve(4 * kPage);
  const auto h = create(kPage);
  ASSERT_EQ(cuMemMap(at, kPage, 0, h, 0), CUDA_SUCCESS);
  EXPECT_EQ(grant(at, 2 * kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(at + kPage, kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(at, kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemSetAccess(at, kPage, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc d{};
  d.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(cuMemSetAccess(at, kPage, &d, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(at, kPage, &d, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8(at, 1, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(vmm, UnmapTakesWholeMappingsOnly) {
  const CUdeviceptr at = reserve(4 * kPage);
  const auto big = create(2 * kPage);
  const auto small = create(kPage);
  map(at, big, 2 * kPage);
  map(at + 2 * kPage, small, kPage);
  EXPECT_EQ(cuMemUnmap(at, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(at, 4 * kPage), CUDA_ERROR_INVALID_VALUE);  // the last page is a hole
  EXPECT_EQ(cuMemUnmap(at, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8(at, 1, 3 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at, 3 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(numbers().live_mappings, 0U);
}

TEST_F(vmm, DataOutlivesReleaseWhileMapped) {
  const CUdeviceptr at = reserve(kPage);
  const auto h = create(kPage);
  map(at, h, kPage);
  ASSERT_EQ(cuMemsetD8(at, 7, kPage), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at + 5, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 7);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(at + 4321)), CUDA_SUCCESS);
  EXPECT_EQ(again, h);
  ASSERT_EQ(cuMemUnmap(at, kPage), CUDA_SUCCESS);
  EXPECT_EQ(numbers().physical_bytes, kPage);  // the retained handle owns it
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(numbers().physical_bytes, 0U);
  EXPECT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(at)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(vmm, PropertiesAndAttributesEchoTheRequest) {
  CUmemAllocationProp p = device_prop();
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_SUCCESS);
  CUmemAllocationProp got{};
  ASSERT_EQ(cuMemGetAllocationPropertiesFromHandle(&got, h), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(&p, &got, sizeof p), 0);
  const CUdeviceptr at = reserve(3 * kPage);
  map(at + kPage, h, kPage);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  ASSERT_EQ(cuMemGetAddressRange(&base, &size, at + kPage + 17), CUDA_SUCCESS);
  EXPECT_EQ(base, at + kPage);
  EXPECT_EQ(size, kPage);
  ASSERT_EQ(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + kPage),
            CUDA_SUCCESS);
  EXPECT_EQ(base, at);
  unsigned long long types = 0;
  ASSERT_EQ(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at + kPage),
            CUDA_SUCCESS);
  EXPECT_EQ(types, 1U);
  bool is_mapped = false;
  ASSERT_EQ(cuPointerGetAttribute(&is_mapped, CU_POINTER_ATTRIBUTE_MAPPED, at + kPage),
            CUDA_SUCCESS);
  EXPECT_TRUE(is_mapped);
  ASSERT_EQ(cuMemUnmap(at + kPage, kPage), CUDA_SUCCESS);
  ASSERT_EQ(cuPointerGetAttribute(&is_mapped, CU_POINTER_ATTRIBUTE_MAPPED, at + kPage),
            CUDA_SUCCESS);
  EXPECT_FALSE(is_mapped);
}

TEST_F(vmm, AnImportInTheSameProcessIsTheSameMemory) {
  CUmemAllocationProp p = device_prop();
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle h = 0;
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_SUCCESS);
  int fd = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_WIN32, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  auto as_handle = [](int f) { return reinterpret_cast<void *>(static_cast<intptr_t>(f)); };
  ASSERT_EQ(cuMemImportFromShareableHandle(&imported, as_handle(fd),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  EXPECT_NE(imported, h);
  close(fd);
  EXPECT_EQ(numbers().live_handles, 1U);
  const CUdeviceptr at = reserve(2 * kPage);
  map(at, h, kPage);
  map(at + kPage, imported, kPage);
  ASSERT_EQ(cuMemsetD8(at, 9, kPage), CUDA_SUCCESS);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at + kPage, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 9);
  const int foreign = open("/dev/null", O_RDONLY);
  EXPECT_EQ(cuMemImportFromShareableHandle(&imported, as_handle(foreign),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
  close(foreign);
}

TEST_F(vmm, HostMemoryIsPhysicalMemoryToo) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  ASSERT_EQ(cuMemGetInfo(&before, &total), CUDA_SUCCESS);
  CUmemAllocationProp p = device_prop();
  p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetInfo(&after, &total), CUDA_SUCCESS);
  EXPECT_EQ(before, after);
  const CUdeviceptr at = reserve(kPage);
  map(at, h, kPage);
  EXPECT_EQ(cuMemsetD8(at, 3, kPage), CUDA_SUCCESS);
}

TEST_F(vmm, SetAccessEnforcesTheMappingCeiling) {
  start("unbacked,mappings=3");
  const CUdeviceptr at = reserve(5 * kPage);
  for (std::size_t i = 0; i < 5; ++i)
    ASSERT_EQ(cuMemMap(at + i * kPage, kPage, 0, create(kPage), 0), CUDA_SUCCESS);
  EXPECT_EQ(grant(at, 4 * kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(grant(at, 3 * kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(grant(at + 3 * kPage, kPage, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemUnmap(at, kPage), CUDA_SUCCESS);
  EXPECT_EQ(grant(at + 3 * kPage, kPage, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
}

TEST_F(vmm, ManyMappingsUnbacked) {
  start("unbacked,profile=multi:8");
  constexpr std::size_t pages = 60000;
  const CUdeviceptr at = reserve(pages * kPage);
  for (std::size_t i = 0; i < pages; ++i) {
    const auto h = create(kPage);
    ASSERT_EQ(cuMemMap(at + i * kPage, kPage, 0, h, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  }
  ASSERT_EQ(grant(at, pages * kPage, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(numbers().live_mappings, pages);
  EXPECT_EQ(cuMemsetD8(at, 1, pages * kPage), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(at, pages * kPage), CUDA_SUCCESS);
  EXPECT_EQ(numbers().physical_bytes, 0U);
}

// Calls drawn by chance, compared with a simple model: a handle that is gone stays unknown although its
// storage is used again, and a mapping is refused exactly where it overlaps another.
TEST_F(vmm, MatchesAModelInAnyOrderOfCalls) {
  for (const char *config : {"unbacked,profile=h200", "profile=h200"}) {
    start(config);
    constexpr std::size_t places = 24;
    std::mt19937 chance(3);
    const auto draw = [&](std::size_t n) { return std::size_t{chance() % n}; };
    struct memory {
      CUmemGenericAllocationHandle handle;
      std::size_t pages;
      std::size_t held = 1;
      std::size_t mapped = 0;
    };
    std::map<std::size_t, memory> known;  // by number
    std::vector<CUmemGenericAllocationHandle> gone;
    std::map<std::size_t, std::pair<std::size_t, std::size_t>> mapped;  // place: memory, pages
    std::size_t next = 0;
    const CUdeviceptr at = reserve(places * kPage);
    const auto drop_if_unused = [&](std::size_t number) {
      const memory &m = known.at(number);
      if (m.held != 0 || m.mapped != 0) return;
      gone.push_back(m.handle);
      known.erase(number);
    };
    const auto any = [&] { return std::next(known.begin(), std::ptrdiff_t(draw(known.size()))); };
    for (int step = 0; step < 20000; ++step) {
      const std::size_t place = draw(places);
      switch (draw(6)) {
        case 0: {
          if (known.size() > 12) break;
          const std::size_t pages = 1 + draw(3);
          const CUmemGenericAllocationHandle h = create(pages * kPage);
          for (const auto &[number, m] : known) ASSERT_NE(m.handle, h);
          ASSERT_EQ(std::count(gone.begin(), gone.end(), h), 0);
          known[next++] = {h, pages};
          break;
        }
        case 1: {
          if (known.empty()) break;
          auto &[number, m] = *any();
          ASSERT_EQ(cuMemRelease(m.handle), m.held != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
          if (m.held == 0) break;
          --m.held;
          drop_if_unused(number);
          break;
        }
        case 2:
        case 3: {
          if (known.empty()) break;
          auto &[number, m] = *any();
          bool fits = m.held != 0 && place + m.pages <= places;
          for (const auto &[begin, of] : mapped)
            fits = fits && (begin + of.second <= place || begin >= place + m.pages);
          ASSERT_EQ(cuMemMap(at + place * kPage, m.pages * kPage, 0, m.handle, 0),
                    fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
          if (!fits) break;
          mapped[place] = {number, m.pages};
          ++m.mapped;
          break;
        }
        case 4: {
          const std::size_t pages = 1 + draw(5);
          std::size_t reached = place;
          std::vector<std::size_t> numbers;
          while (reached < place + pages && mapped.contains(reached)) {
            numbers.push_back(mapped[reached].first);
            reached += mapped[reached].second;
          }
          const bool whole = reached == place + pages;
          ASSERT_EQ(cuMemUnmap(at + place * kPage, pages * kPage),
                    whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
          if (!whole) break;
          mapped.erase(mapped.lower_bound(place), mapped.lower_bound(reached));
          for (const std::size_t number : numbers) {
            --known.at(number).mapped;
            drop_if_unused(number);
          }
          break;
        }
        default: {
          const auto behind = mapped.upper_bound(place);
          const bool there = behind != mapped.begin() &&
                             std::prev(behind)->first + std::prev(behind)->second.second > place;
          CUmemGenericAllocationHandle h = 0;
          ASSERT_EQ(cuMemRetainAllocationHandle(&h, reinterpret_cast<void *>(at + place * kPage)),
                    there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
          if (!there) break;
          memory &m = known.at(std::prev(behind)->second.first);
          ASSERT_EQ(h, m.handle);
          ++m.held;
        }
      }
      if (!gone.empty()) {
        ASSERT_EQ(cuMemRelease(gone[draw(gone.size())]), CUDA_ERROR_INVALID_VALUE);
      }
      if (gone.size() > 50) gone.erase(gone.begin());
      std::size_t pages = 0;
      for (const auto &[number, m] : known) pages += m.pages;
      ASSERT_EQ(numbers().physical_bytes, pages * kPage);
      ASSERT_EQ(numbers().live_mappings, mapped.size());
    }
  }
}

}  // namespace
}  // namespace hostcuda_tests
