// CUDA arrays: formats, descriptors, levels, and copies in elements, rows and boxes.
#include <algorithm>

#include "runtime_fixture.h"

namespace cudart_tests {
namespace {

class runtime_array : public runtime_test {
 protected:
  static constexpr cudaChannelFormatDesc bytes{8, 0, 0, 0, cudaChannelFormatKindUnsigned};
  static constexpr cudaChannelFormatDesc floats{32, 0, 0, 0, cudaChannelFormatKindFloat};

  static cudaArray_t flat(std::size_t width, std::size_t height,
                          const cudaChannelFormatDesc &desc = bytes) {
    cudaArray_t a = nullptr;
    EXPECT_EQ(cudaMallocArray(&a, &desc, width, height, 0), cudaSuccess);
    return a;
  }

  static std::vector<unsigned char> contents(cudaArray_t a, std::size_t width, std::size_t rows) {
    std::vector<unsigned char> out(width * rows);
    EXPECT_EQ(
        cudaMemcpy2DFromArray(out.data(), width, a, 0, 0, width, rows, cudaMemcpyDeviceToHost),
        cudaSuccess);
    return out;
  }

  static std::size_t free_bytes() {
    std::size_t unused = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&unused, &total), cudaSuccess);
    return unused;
  }
};

TEST_F(runtime_array, is_described_as_it_was_allocated) {
  const std::size_t before = free_bytes();
  const cudaChannelFormatDesc desc =
      cudaCreateChannelDesc(16, 16, 16, 16, cudaChannelFormatKindFloat);
  cudaArray_t a = nullptr;
  ASSERT_EQ(cudaMalloc3DArray(&a, &desc, {8, 4, 3}, cudaArrayLayered), cudaSuccess);
  cudaChannelFormatDesc got{};
  cudaExtent extent{};
  unsigned flags = 0;
  ASSERT_EQ(cudaArrayGetInfo(&got, &extent, &flags, a), cudaSuccess);
  EXPECT_EQ(std::memcmp(&got, &desc, sizeof got), 0);
  EXPECT_EQ(extent.width, 8U);
  EXPECT_EQ(extent.height, 4U);
  EXPECT_EQ(extent.depth, 3U);
  EXPECT_EQ(flags, unsigned{cudaArrayLayered});
  EXPECT_EQ(cudaArrayGetInfo(nullptr, nullptr, nullptr, a), cudaSuccess);
  got = {};
  ASSERT_EQ(cudaGetChannelDesc(&got, a), cudaSuccess);
  EXPECT_EQ(std::memcmp(&got, &desc, sizeof got), 0);
  EXPECT_EQ(cudaFreeArray(a), cudaSuccess);
  EXPECT_EQ(cudaFreeArray(a), cudaErrorInvalidValue);
  EXPECT_EQ(cudaArrayGetInfo(&got, &extent, &flags, a), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeArray(nullptr), cudaSuccess);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(runtime_array, every_format_comes_back) {
  for (const cudaChannelFormatKind kind :
       {cudaChannelFormatKindSigned, cudaChannelFormatKindUnsigned, cudaChannelFormatKindFloat})
    for (const int bits : {8, 16, 32})
      for (const int channels : {1, 2, 4}) {
        if (kind == cudaChannelFormatKindFloat && bits == 8) continue;
        const cudaChannelFormatDesc desc{bits, channels > 1 ? bits : 0, channels > 2 ? bits : 0,
                                         channels > 2 ? bits : 0, kind};
        cudaArray_t a = flat(4, 4, desc);
        cudaChannelFormatDesc got{};
        ASSERT_EQ(cudaGetChannelDesc(&got, a), cudaSuccess);
        EXPECT_EQ(std::memcmp(&got, &desc, sizeof got), 0)
            << kind << ' ' << bits << ' ' << channels;
      }
  const cudaChannelFormatDesc normalised{16, 16, 0, 0, cudaChannelFormatKindSignedNormalized16X2};
  cudaChannelFormatDesc got{};
  ASSERT_EQ(cudaGetChannelDesc(&got, flat(4, 4, normalised)), cudaSuccess);
  EXPECT_EQ(std::memcmp(&got, &normalised, sizeof got), 0);
}

TEST_F(runtime_array, invalid_descriptors_are_refused) {
  cudaArray_t a = nullptr;
  const auto refused = [&](cudaChannelFormatDesc desc) {
    return cudaMallocArray(&a, &desc, 4, 4, 0);
  };
  constexpr cudaChannelFormatKind u = cudaChannelFormatKindUnsigned;
  EXPECT_EQ(refused({8, 8, 8, 0, u}), cudaErrorInvalidChannelDescriptor);   // three channels
  EXPECT_EQ(refused({8, 16, 0, 0, u}), cudaErrorInvalidChannelDescriptor);  // of different sizes
  EXPECT_EQ(refused({0, 8, 0, 0, u}), cudaErrorInvalidChannelDescriptor);
  EXPECT_EQ(refused({12, 0, 0, 0, u}), cudaErrorInvalidChannelDescriptor);
  EXPECT_EQ(refused({8, 0, 0, 0, cudaChannelFormatKindFloat}), cudaErrorInvalidChannelDescriptor);
  EXPECT_EQ(refused({8, 0, 0, 0, cudaChannelFormatKindNone}), cudaErrorInvalidChannelDescriptor);
  EXPECT_EQ(refused({8, 8, 8, 0, cudaChannelFormatKindNV12}), cudaErrorNotSupported);
  EXPECT_EQ(cudaMallocArray(&a, nullptr, 4, 4, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMallocArray(nullptr, &bytes, 4, 4, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMallocArray(&a, &bytes, 0, 0, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMallocArray(&a, &bytes, 4, 4, cudaArrayLayered), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMallocArray(&a, &bytes, 1 << 20, 1 << 20, 0), cudaErrorInvalidValue);
}

TEST_F(runtime_array, rectangles_go_to_an_array_and_come_back) {
  const auto in = pattern(std::size_t{40} * 6);
  cudaArray_t a = flat(40, 6);
  cudaArray_t b = flat(64, 8);
  ASSERT_EQ(cudaMemcpy2DToArray(a, 0, 0, in.data(), 40, 40, 6, cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(contents(a, 40, 6), in);
  ASSERT_EQ(cudaMemcpy2DArrayToArray(b, 4, 1, a, 8, 2, 20, 3, cudaMemcpyDeviceToDevice),
            cudaSuccess);
  std::vector<unsigned char> out(std::size_t{32} * 3);
  ASSERT_EQ(cudaMemcpy2DFromArray(out.data(), 32, b, 4, 1, 20, 3, cudaMemcpyDefault), cudaSuccess);
  for (std::size_t y = 0; y < 3; ++y)
    for (std::size_t x = 0; x < 20; ++x) ASSERT_EQ(out[y * 32 + x], in[(y + 2) * 40 + x + 8]);
  EXPECT_EQ(cudaMemcpy2DToArray(a, 1, 0, in.data(), 40, 40, 6, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy2DToArray(a, 0, 0, in.data(), 20, 40, 6, cudaMemcpyHostToDevice),
            cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemcpy2DToArray(a, 0, 0, in.data(), 40, 40, 6, static_cast<cudaMemcpyKind>(9)),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy2DToArray(nullptr, 0, 0, in.data(), 40, 40, 6, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
}

TEST_F(runtime_array, asynchronous_copies_follow_their_stream) {
  const auto in = pattern(std::size_t{32} * 4);
  cudaArray_t a = flat(32, 4);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  std::vector<unsigned char> out(in.size());
  ASSERT_EQ(cudaMemcpy2DToArrayAsync(a, 0, 0, in.data(), 32, 32, 4, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  ASSERT_EQ(
      cudaMemcpy2DFromArrayAsync(out.data(), 32, a, 0, 0, 32, 4, cudaMemcpyDeviceToHost, stream),
      cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(out, in);
}

// The deprecated copies of bytes run on from row to row.
TEST_F(runtime_array, runs_of_bytes_continue_in_the_next_row) {
  const auto in = pattern(200);
  cudaArray_t a = flat(32, 8);
  cudaArray_t b = flat(20, 13);
  std::vector<unsigned char> zero(256), out(200);
  ASSERT_EQ(cudaMemcpyToArray(a, 0, 0, zero.data(), 256, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpyToArray(a, 10, 1, in.data(), 200, cudaMemcpyHostToDevice), cudaSuccess);
  auto expected = zero;
  std::copy(in.begin(), in.end(), expected.begin() + 42);
  EXPECT_EQ(contents(a, 32, 8), expected);
  ASSERT_EQ(cudaMemcpyFromArray(out.data(), a, 10, 1, 200, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, in);
  ASSERT_EQ(cudaMemcpyArrayToArray(b, 0, 0, a, 10, 1, 200, cudaMemcpyDeviceToDevice), cudaSuccess);
  out.assign(200, 0);
  ASSERT_EQ(cudaMemcpyFromArrayAsync(out.data(), b, 0, 0, 200, cudaMemcpyDeviceToHost, nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(out, in);
  // Nothing is written by a run that does not fit.
  EXPECT_EQ(cudaMemcpyToArray(a, 10, 6, zero.data(), 60, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyToArray(a, 32, 0, zero.data(), 1, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(contents(a, 32, 8), expected);
}

TEST_F(runtime_array, boxes_are_measured_in_elements) {
  const auto in = pattern(std::size_t{5} * 4 * 3 * sizeof(float));
  cudaArray_t a = nullptr;
  ASSERT_EQ(cudaMalloc3DArray(&a, &floats, {5, 4, 3}, 0), cudaSuccess);
  cudaMemcpy3DParms p{};
  p.srcPtr = {const_cast<unsigned char *>(in.data()), 5 * sizeof(float), 5, 4};
  p.dstArray = a;
  p.extent = {5, 4, 3};
  p.kind = cudaMemcpyHostToDevice;
  ASSERT_EQ(cudaMemcpy3D(&p), cudaSuccess);
  std::vector<unsigned char> out(std::size_t{2} * 2 * 2 * sizeof(float));
  cudaMemcpy3DParms back{};
  back.srcArray = a;
  back.srcPos = {3, 1, 1};
  back.dstPtr = {out.data(), 2 * sizeof(float), 2, 2};
  back.extent = {2, 2, 2};
  back.kind = cudaMemcpyDeviceToHost;
  ASSERT_EQ(cudaMemcpy3DAsync(&back, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (std::size_t z = 0; z < 2; ++z)
    for (std::size_t y = 0; y < 2; ++y)
      ASSERT_EQ(std::memcmp(out.data() + (z * 2 + y) * 8,
                            in.data() + (((z + 1) * 4 + y + 1) * 5 + 3) * 4, 8),
                0);
  back.srcPos.x = 4;  // an element beyond the row
  EXPECT_EQ(cudaMemcpy3D(&back), cudaErrorInvalidValue);
  back.srcPos.x = 3;
  back.srcPtr = p.srcPtr;  // two sources
  EXPECT_EQ(cudaMemcpy3D(&back), cudaErrorInvalidValue);
  // Between arrays, whose elements must have one size.
  cudaMemcpy3DParms both{};
  both.srcArray = a;
  ASSERT_EQ(cudaMalloc3DArray(&both.dstArray, &floats, {5, 4, 3}, 0), cudaSuccess);
  both.extent = {5, 4, 3};
  both.kind = cudaMemcpyDeviceToDevice;
  ASSERT_EQ(cudaMemcpy3D(&both), cudaSuccess);
  ASSERT_EQ(cudaMalloc3DArray(&both.dstArray, &bytes, {20, 4, 3}, 0), cudaSuccess);
  EXPECT_EQ(cudaMemcpy3D(&both), cudaErrorInvalidValue);
}

TEST_F(runtime_array, levels_belong_to_their_mipmapped_array) {
  cudaMipmappedArray_t m = nullptr;
  ASSERT_EQ(cudaMallocMipmappedArray(&m, &floats, {16, 8, 0}, 3, 0), cudaSuccess);
  cudaArray_t level = nullptr;
  cudaExtent extent{};
  ASSERT_EQ(cudaGetMipmappedArrayLevel(&level, m, 2), cudaSuccess);
  ASSERT_EQ(cudaArrayGetInfo(nullptr, &extent, nullptr, level), cudaSuccess);
  EXPECT_EQ(extent.width, 4U);
  EXPECT_EQ(extent.height, 2U);
  EXPECT_EQ(cudaGetMipmappedArrayLevel(&level, m, 3), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetMipmappedArrayLevel(&level, nullptr, 0), cudaErrorInvalidResourceHandle);
  cudaArrayMemoryRequirements needs{};
  EXPECT_EQ(cudaArrayGetMemoryRequirements(&needs, level, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeMipmappedArray(m), cudaSuccess);
  EXPECT_EQ(cudaFreeMipmappedArray(m), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeMipmappedArray(nullptr), cudaSuccess);
}

}  // namespace
}  // namespace cudart_tests
