// Cubins: the names and resources of their kernels, and their variables. The file is laid out here as
// ptxas lays it out; tests of Numba run the same code with files of ptxas.
#include <elf.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class cubin_file {
 public:
  cubin_file() {
    add(".nv.constant3", SHT_PROGBITS, bytes_of<double>({1.5, 2.5}));
    add(".nv.global.init", SHT_PROGBITS, bytes_of<int>({7, 8, 9}));
    add(".nv.global", SHT_NOBITS, {}, 4096);
    add(".text.k", SHT_PROGBITS, std::string(128, '\0'));
    add(".nv.shared.k", SHT_NOBITS, {}, 1024 + 400);
    add(".nv.shared.reserved.0", SHT_NOBITS, {}, 0);
    symbol("", 0, 0, "", 0, 0);
    symbol("table", STB_GLOBAL, STT_OBJECT, ".nv.constant3", 8, 8);
    symbol("numbers", STB_GLOBAL, STT_OBJECT, ".nv.global.init", 0, 12);
    symbol("zeros", STB_WEAK, STT_OBJECT, ".nv.global", 0, 4096);
    symbol("local", STB_LOCAL, STT_OBJECT, ".nv.global.init", 4, 4);
    symbol("helper", STB_GLOBAL, STT_FUNC, ".text.k", 0, 64);
    symbol("k", STB_GLOBAL, STT_FUNC, ".text.k", 0, 128, 0x10);
    const std::uint32_t k = 6;
    // Words of .nv.info: a record without a size, the register count, and the frame's size.
    add(".nv.info", 0x70000000,
        bytes_of<std::uint32_t>({0x00FF1B03, 0x00082F04, k, 57, 0x00081104, k, 4000}));
    add(".strtab", SHT_STRTAB, strings_);
    add(".symtab", SHT_SYMTAB, symbols_);
    sections_.back().sh_link = static_cast<Elf64_Word>(sections_.size() - 2);
    add(".shstrtab", SHT_STRTAB, "");
    sections_.back().sh_offset = sizeof(Elf64_Ehdr) + content_.size();
    sections_.back().sh_size = names_.size();
    content_ += names_;
    content_.resize((content_.size() + 7) / 8 * 8);
  }

  std::string bytes() const {
    Elf64_Ehdr header{};
    const unsigned char ident[] = {0x7F, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1, 0x41, 8};
    std::memcpy(header.e_ident, ident, sizeof ident);
    header.e_type = ET_EXEC;
    header.e_machine = 190;
    header.e_shoff = sizeof header + content_.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<Elf64_Half>(sections_.size());
    header.e_shstrndx = static_cast<Elf64_Half>(sections_.size() - 1);
    std::string out(reinterpret_cast<const char *>(&header), sizeof header);
    out += content_;
    out.append(reinterpret_cast<const char *>(sections_.data()),
               sections_.size() * sizeof(Elf64_Shdr));
    return out;
  }

 private:
  template <class T>
  static std::string bytes_of(std::vector<T> values) {
    return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)};
  }

  void add(const std::string &name, unsigned type, const std::string &content,
           std::size_t size = 0) {
    Elf64_Shdr s{};
    s.sh_name = static_cast<Elf64_Word>(names_.size());
    names_ += name + '\0';
    section_names_.push_back(name);
    s.sh_type = type;
    s.sh_offset = sizeof(Elf64_Ehdr) + content_.size();
    s.sh_size = type == SHT_NOBITS ? size : content.size();
    content_ += content;
    sections_.push_back(s);
  }

  void symbol(const std::string &name, unsigned bind, unsigned type, const std::string &section,
              std::size_t value, std::size_t size, unsigned char other = 0) {
    Elf64_Sym s{};
    s.st_name = static_cast<Elf64_Word>(strings_.size());
    strings_ += name + '\0';
    s.st_info = static_cast<unsigned char>(ELF64_ST_INFO(bind, type));
    s.st_other = other;
    for (std::size_t i = 0; i < section_names_.size(); ++i)
      if (section_names_[i] == section) s.st_shndx = static_cast<Elf64_Half>(i);
    s.st_value = value;
    s.st_size = size;
    symbols_.append(reinterpret_cast<const char *>(&s), sizeof s);
  }

  std::string content_;
  std::string names_;
  std::string strings_;
  std::string symbols_;
  std::vector<std::string> section_names_;
  std::vector<Elf64_Shdr> sections_;
};

class cubin_test : public machine_test {
 protected:
  void SetUp() override {
    start("profile=h200,kernels=skip");
    ASSERT_EQ(cuModuleLoadData(&module_, image_.data()), CUDA_SUCCESS);
  }

  static std::uint64_t used() {
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    EXPECT_EQ(cuMemGetInfo(&free_bytes, &total), CUDA_SUCCESS);
    return total - free_bytes;
  }

  static int attribute(CUfunction f, CUfunction_attribute what) {
    int out = -1;
    EXPECT_EQ(cuFuncGetAttribute(&out, what, f), CUDA_SUCCESS);
    return out;
  }

  template <class T>
  static std::vector<T> read(CUdeviceptr at, std::size_t bytes) {
    std::vector<T> out(bytes / sizeof(T));
    EXPECT_EQ(cuMemcpyDtoH(out.data(), at, bytes), CUDA_SUCCESS);
    return out;
  }

  const std::string image_ = cubin_file().bytes();
  CUmodule module_ = nullptr;
};

TEST_F(cubin_test, KernelsHaveTheirNamesAndResources) {
  CUfunction f = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&f, module_, "helper"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(&f, module_, "nothing"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(cuModuleGetFunction(&f, module_, "k"), CUDA_SUCCESS);
  EXPECT_EQ(attribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS), 57);
  EXPECT_EQ(attribute(f, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), 4000);
  EXPECT_EQ(attribute(f, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 400);
  EXPECT_EQ(attribute(f, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES), 16);
  int blocks = 0;
  ASSERT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 1024, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 1);  // 57 registers for each of 1,024 threads; 2 with 32
}

TEST_F(cubin_test, VariablesHaveTheirInitialValues) {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(cuModuleGetGlobal(&at, &bytes, module_, "numbers"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 12U);
  EXPECT_EQ(read<int>(at, 12), (std::vector<int>{7, 8, 9}));
  ASSERT_EQ(cuModuleGetGlobal(&at, &bytes, module_, "table"), CUDA_SUCCESS);
  EXPECT_EQ(read<double>(at, bytes), std::vector<double>{2.5});
  ASSERT_EQ(cuModuleGetGlobal(&at, &bytes, module_, "zeros"), CUDA_SUCCESS);
  EXPECT_EQ(read<char>(at, bytes), std::vector<char>(4096));
  ASSERT_EQ(cuModuleGetGlobal(&at, &bytes, module_, "local"), CUDA_SUCCESS);
  EXPECT_EQ(read<int>(at, bytes), std::vector<int>{8});
  EXPECT_EQ(cuModuleGetGlobal(&at, &bytes, module_, "k"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(cubin_test, AVariableStaysUntilItsModuleIsUnloaded) {
  const std::uint64_t before = used();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuModuleGetGlobal(&at, nullptr, module_, "numbers"), CUDA_SUCCESS);
  EXPECT_GT(used(), before);
  const int written[] = {1, 2, 3};
  ASSERT_EQ(cuMemcpyHtoD(at, written, sizeof written), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr again = 0;
  ASSERT_EQ(cuModuleGetGlobal(&again, nullptr, module_, "numbers"), CUDA_SUCCESS);
  EXPECT_EQ(again, at);
  EXPECT_EQ(read<int>(at, 12), (std::vector<int>{1, 2, 3}));
  ASSERT_EQ(cuModuleUnload(module_), CUDA_SUCCESS);
  EXPECT_EQ(used(), before);
  EXPECT_EQ(cuModuleGetGlobal(&again, nullptr, module_, "numbers"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(cubin_test, EachModuleAndContextHasItsOwn) {
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUdeviceptr mine = 0;
  CUdeviceptr of_library = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(cuModuleGetGlobal(&mine, nullptr, module_, "numbers"), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetGlobal(&of_library, &bytes, library, "numbers"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 12U);
  EXPECT_NE(mine, of_library);
  EXPECT_EQ(cuLibraryGetGlobal(&mine, &bytes, library, "nothing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLibraryGetGlobal(nullptr, nullptr, library, "numbers"), CUDA_ERROR_INVALID_VALUE);
  const std::uint64_t before = used();
  CUcontext other = nullptr;
  CUdevice device = 0;
  ASSERT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
#if CUDA_VERSION >= 13000
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, device), CUDA_SUCCESS);
#else
  ASSERT_EQ(cuCtxCreate(&other, 0, device), CUDA_SUCCESS);
#endif
  CUdeviceptr of_other = 0;
  ASSERT_EQ(cuLibraryGetGlobal(&of_other, &bytes, library, "numbers"), CUDA_SUCCESS);
  EXPECT_NE(of_other, of_library);
  EXPECT_EQ(cuModuleGetGlobal(&mine, nullptr, module_, "numbers"), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(used(), before);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(cubin_test, ARegisteredKernelRuns) {
  static int runs;
  runs = 0;
  ASSERT_EQ(hostcuda_register_kernel(
                "k", [](const hostcuda_launch *) { ++runs; }, 0, nullptr),
            CUDA_SUCCESS);
  CUfunction f = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&f, module_, "k"), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(runs, 1);
}

TEST_F(cubin_test, AFunctionIsRegisteredByItsHandle) {
  static int runs[3];
  runs[0] = runs[1] = runs[2] = 0;
  CUlibrary libraries[2] = {};
  CUkernel kernels[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(
        cuLibraryLoadData(&libraries[i], image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetKernel(&kernels[i], libraries[i], "k"), CUDA_SUCCESS);
  }
  CUfunction early = nullptr;  // exists before the kernel is registered
  ASSERT_EQ(cuKernelGetFunction(&early, kernels[0]), CUDA_SUCCESS);
  CUfunction of_module = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&of_module, module_, "k"), CUDA_SUCCESS);
  const hostcuda_kernel count[] = {[](const hostcuda_launch *) { ++runs[0]; },
                                   [](const hostcuda_launch *) { ++runs[1]; },
                                   [](const hostcuda_launch *) { ++runs[2]; }};
  CUfunction handles[] = {reinterpret_cast<CUfunction>(kernels[0]),
                          reinterpret_cast<CUfunction>(kernels[1]), of_module};
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(hostcuda_register_function(handles[i], count[i], 0, nullptr), CUDA_SUCCESS);
  const auto launch = [](CUfunction f) {
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  };
  for (const CUfunction f : handles) launch(f);
  launch(early);
  EXPECT_EQ(runs[0], 2);
  EXPECT_EQ(runs[1], 1);
  EXPECT_EQ(runs[2], 1);
  const std::size_t sizes[] = {8};
  EXPECT_EQ(hostcuda_register_function(of_module, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_register_function(of_module, count[0], 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_register_function(nullptr, count[0], 1, sizes), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuModuleUnload(module_), CUDA_SUCCESS);
  EXPECT_EQ(hostcuda_register_function(of_module, count[0], 1, sizes), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(cubin_test, SharedMemoryOfALaunchIsLimited) {
  CUfunction f = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&f, module_, "k"), CUDA_SUCCESS);
  const auto launch = [&](unsigned shared) {
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, shared, nullptr, nullptr, nullptr);
  };
  EXPECT_EQ(launch(48 * 1024 - 400), CUDA_SUCCESS);  // it has 400 bytes of its own
  EXPECT_EQ(launch(48 * 1024 - 399), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024),
            CUDA_SUCCESS);
  EXPECT_EQ(launch(227 * 1024 - 400), CUDA_SUCCESS);
  EXPECT_EQ(launch(227 * 1024 - 399), CUDA_ERROR_INVALID_VALUE);
}

// Any name is a kernel of what cannot be read, as of a fat binary.
TEST_F(cubin_test, ADamagedFileIsNotRead) {
  const auto path =
      std::filesystem::temp_directory_path() / ("hostcuda_cubin_" + std::to_string(::getpid()));
  const auto load = [&](const std::string &bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    CUmodule m = nullptr;
    CUfunction f = nullptr;
    EXPECT_EQ(cuModuleLoad(&m, path.c_str()), CUDA_SUCCESS);
    const CUresult r = cuModuleGetFunction(&f, m, "any");
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    return r;
  };
  EXPECT_EQ(load(image_), CUDA_ERROR_NOT_FOUND);
  for (std::size_t bytes = EI_NIDENT; bytes < image_.size(); ++bytes)
    ASSERT_EQ(load(image_.substr(0, bytes)), CUDA_SUCCESS) << bytes;
  for (std::size_t i = EI_NIDENT; i < image_.size(); ++i) {  // must not read outside of the file
    std::string damaged = image_;
    damaged[i] = '\xFF';
    load(damaged);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace hostcuda_tests
