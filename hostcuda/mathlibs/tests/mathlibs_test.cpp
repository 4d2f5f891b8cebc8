// The stand-ins of the math libraries: who may use them, what they answer, and that all can be loaded.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace hostcuda_tests {
namespace {

using function = int (*)(...);

std::filesystem::path folder(const char *variable, const char *otherwise) {
  const char *const given = std::getenv(variable);
  return std::filesystem::absolute(given != nullptr ? given : otherwise);
}

class mathlibs : public ::testing::Test {
 protected:
  void SetUp() override {
    static void *const driver = dlopen(
        (folder("HOSTCUDA_FOLDER", "hostcuda") / "libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(driver, nullptr) << dlerror();
    reset_ = reinterpret_cast<function>(dlsym(driver, "hostcuda_reset"));
    ASSERT_NE(reset_, nullptr);
    become("kernels=skip");
  }
  void TearDown() override { become(""); }
  void become(const char *config) { ASSERT_EQ(reset_(config), 0) << config; }

  static std::filesystem::path place() { return folder("MATHLIBS_FOLDER", "hostcuda/mathlibs"); }

  // The function of a library; the first one that is there of the two versions.
  static function find(const std::string &library, const char *name) {
    for (const auto &entry : std::filesystem::directory_iterator(place())) {
      const std::string file = entry.path().filename();
      if (file.rfind(library + ".so.", 0) != 0 || file.find(".lds") != std::string::npos) continue;
      if (void *const loaded = dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL)) {
        return reinterpret_cast<function>(dlsym(loaded, name));
      }
    }
    return nullptr;
  }

  function reset_ = nullptr;
};

TEST_F(mathlibs, AllCanBeLoadedAndExportTheirFunctionsOnly) {
  std::size_t loaded = 0;
  for (const auto &entry : std::filesystem::directory_iterator(place())) {
    const std::string file = entry.path().filename();
    if (file.find(".so.") == std::string::npos || entry.is_directory()) continue;
    if (file.find("params") != std::string::npos || file.find(".lds") != std::string::npos)
      continue;
    void *const library = dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    EXPECT_EQ(dlsym(library, "_ZN8stand_in7allowedEv"), nullptr) << file;
    ++loaded;
  }
  EXPECT_EQ(loaded, 17U);
}

TEST_F(mathlibs, HandlesNeedSkippedKernels) {
  void *handle = nullptr;
  become("kernels=refuse");
  EXPECT_EQ(find("libcublas", "cublasCreate_v2")(&handle), 1);  // NOT_INITIALIZED
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(find("libcudnn", "cudnnCreate")(&handle), 1001);
  EXPECT_EQ(find("libcusolver", "cusolverDnCreate")(&handle), 1);
  become("kernels=skip");
  ASSERT_EQ(find("libcublas", "cublasCreate_v2")(&handle), 0);
  ASSERT_NE(handle, nullptr);
  int mode = 0;
  EXPECT_EQ(find("libcublas", "cublasSetMathMode")(handle, 3), 0);
  EXPECT_EQ(find("libcublas", "cublasGetMathMode")(handle, &mode), 0);
  EXPECT_EQ(mode, 3);
  EXPECT_EQ(find("libcublas", "cublasSgemm_v2")(handle), 0);
  EXPECT_EQ(find("libcublas", "cublasDestroy_v2")(handle), 0);
}

// Regression: vLLM's libraries import the one, ONNX Runtime's CUDA provider the other, and did not load.
TEST_F(mathlibs, CublasNamesItsErrors) {
  for (const char *const reports : {"cublasGetStatusString", "cublasGetStatusName"}) {
    const auto name = reinterpret_cast<const char *(*)(int)>(
        reinterpret_cast<void *>(find("libcublas", reports)));
    ASSERT_NE(name, nullptr) << reports;
    EXPECT_STREQ(name(0), "CUBLAS_STATUS_SUCCESS");
    EXPECT_STREQ(name(15), "CUBLAS_STATUS_NOT_SUPPORTED");
  }
}

// Regression: ONNX Runtime reduces with cuDNN, which makes descriptors and asks for sizes.
TEST_F(mathlibs, AReductionNeedsNoWorkspace) {
  void *reduction = nullptr;
  const function create = find("libcudnn", "cudnnCreateReduceTensorDescriptor");
  ASSERT_NE(create, nullptr);
  ASSERT_EQ(create(&reduction), 0);
  ASSERT_NE(reduction, nullptr);
  for (const char *const size :
       {"cudnnGetReductionWorkspaceSize", "cudnnGetReductionIndicesSize"}) {
    std::size_t bytes = 1;
    ASSERT_NE(find("libcudnn", size), nullptr);
    EXPECT_EQ(find("libcudnn", size)(nullptr, reduction, nullptr, nullptr, &bytes), 0);
    EXPECT_EQ(bytes, 0U);
  }
  EXPECT_EQ(find("libcudnn", "cudnnReduceTensor")(), 0);
  EXPECT_EQ(find("libcudnn", "cudnnDestroyReduceTensorDescriptor")(reduction), 0);
}

TEST_F(mathlibs, ASearchFindsOneAlgorithmWithoutWorkspace) {
  std::vector<unsigned char> results(2 * 96, 0xAA);
  int found = -1;
  ASSERT_EQ(
      find("libcublasLt", "cublasLtMatmulAlgoGetHeuristic")(
          nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 2, results.data(), &found),
      0);
  EXPECT_EQ(found, 1);
  EXPECT_EQ(std::vector<unsigned char>(results.begin(), results.begin() + 96),
            std::vector<unsigned char>(96, 0));
  EXPECT_EQ(results[96], 0xAA);
}

TEST_F(mathlibs, DescriptorsRememberTheirDimensions) {
  void *tensor = nullptr;
  ASSERT_EQ(find("libcudnn", "cudnnCreateTensorDescriptor")(&tensor), 0);
  const int sizes[] = {2, 3, 5}, strides[] = {15, 5, 1};
  ASSERT_EQ(find("libcudnn", "cudnnSetTensorNdDescriptor")(tensor, 2, 3, sizes, strides), 0);
  EXPECT_EQ(find("libcudnn", "cudnnSetTensorNdDescriptor")(tensor, 2, 9, sizes, strides), 2000);
  int type = 0, count = 0, got_sizes[2] = {}, got_strides[2] = {};
  ASSERT_EQ(find("libcudnn", "cudnnGetTensorNdDescriptor")(tensor, 2, &type, &count, got_sizes,
                                                           got_strides),
            0);
  EXPECT_EQ(type, 2);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(got_sizes[1], 3);
  EXPECT_EQ(got_strides[1], 5);
  EXPECT_EQ(find("libcudnn", "cudnnDestroyTensorDescriptor")(tensor), 0);
}

TEST_F(mathlibs, GraphsOfOperationsHaveOneEngineWithoutWorkspace) {
  const function get = find("libcudnn", "cudnnBackendGetAttribute");
  void *descriptor = nullptr;
  ASSERT_EQ(find("libcudnn", "cudnnBackendCreateDescriptor")(8, &descriptor), 0);
  std::int64_t count = -1, workspace = -1;
  constexpr int heuristic_results = 202, plan_workspace = 402, knobs = 1302;
  constexpr int int64 = 3, descriptors = 15;
  EXPECT_EQ(get(descriptor, heuristic_results, descriptors, std::int64_t{0}, &count, nullptr), 0);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(get(descriptor, plan_workspace, int64, std::int64_t{1}, &count, &workspace), 0);
  EXPECT_EQ(workspace, 0);
  EXPECT_EQ(get(descriptor, knobs, descriptors, std::int64_t{0}, &count, nullptr), 0);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(find("libcudnn", "cudnnBackendDestroyDescriptor")(descriptor), 0);
}

TEST_F(mathlibs, CommunicatorsKnowTheirRank) {
  void *all[3] = {};
  ASSERT_EQ(find("libnccl", "ncclCommInitAll")(all, 3, nullptr), 0);
  for (int i = 0; i < 3; ++i) {
    int ranks = 0, rank = -1;
    EXPECT_EQ(find("libnccl", "ncclCommCount")(all[i], &ranks), 0);
    EXPECT_EQ(find("libnccl", "ncclCommUserRank")(all[i], &rank), 0);
    EXPECT_EQ(ranks, 3);
    EXPECT_EQ(rank, i);
    EXPECT_EQ(find("libnccl", "ncclCommDestroy")(all[i]), 0);
  }
}

// PyTorch 2.15 registers its segments with each communicator.
TEST_F(mathlibs, CommunicatorsRegisterMemory) {
  void *comm = nullptr, *first = nullptr, *second = nullptr;
  char memory[64] = {};
  ASSERT_EQ(find("libnccl", "ncclCommInitAll")(&comm, 1, nullptr), 0);
  EXPECT_EQ(find("libnccl", "ncclCommRegister")(comm, memory, std::size_t{32}, &first), 0);
  EXPECT_EQ(find("libnccl", "ncclCommRegister")(comm, memory + 32, std::size_t{32}, &second), 0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(find("libnccl", "ncclCommDeregister")(comm, second), 0);
  EXPECT_EQ(find("libnccl", "ncclCommDeregister")(comm, first), 0);
  EXPECT_EQ(find("libnccl", "ncclCommDestroy")(comm), 0);
}

// A stand-in takes the place of the real library, so a program that imports more does not start.
TEST_F(mathlibs, WhatPyCUDAImportsOfCurandIsThere) {
  for (const char *name :
       {"curandGetVersion", "curandGetDirectionVectors32", "curandGetDirectionVectors64",
        "curandGetScrambleConstants32", "curandGetScrambleConstants64"}) {
    const function f = find("libcurand", name);
    ASSERT_NE(f, nullptr) << name;
    EXPECT_NE(f(), 0) << name;
  }
}

// What reports results to the host must not succeed with results that nothing has computed.
TEST_F(mathlibs, OperationsWithResultsForTheHostAreRefused) {
  EXPECT_EQ(find("libcusolver", "cusolverDnSgetrf")(), 9);
  EXPECT_EQ(find("libcusparse", "cusparseSpMM")(), 10);
  EXPECT_EQ(find("libcudnn", "cudnnGetRNNWeightSpaceSize")(), 3000);
  EXPECT_EQ(find("libcupti", "cuptiSubscribe")(), 27);
  EXPECT_EQ(find("libcufile", "cuFileRead")(), 5002);
}

}  // namespace
}  // namespace hostcuda_tests
