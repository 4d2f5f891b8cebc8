#include "hostcuda/src/execution/image.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

#include "hostcuda/src/machine.h"

namespace hostcuda {
namespace {

// Whether `image` is machine code: a cubin (ELF) or one of the two fat binary headers.
bool is_machine_code(const void *image) {
  static constexpr unsigned char magics[][4] = {
      {0x7F, 'E', 'L', 'F'}, {0x50, 0xED, 0x55, 0xBA}, {0xB1, 0x43, 0x62, 0x46}};
  for (const auto &magic : magics) {
    // Compare bytes, because PTX text may be shorter than four bytes.
    const auto *bytes = static_cast<const unsigned char *>(image);
    std::size_t i = 0;
    while (i < 4 && bytes[i] == magic[i]) ++i;
    if (i == 4) return true;
  }
  return false;
}

constexpr const char *kMachineCode =
    "hostcuda does not run machine code; kernels=skip accepts it and runs registered kernels only";

CUresult parse_machine_code(const void *image, std::optional<std::size_t> size, code_image *out,
                            const char **error) {
  if (current_settings().skip_kernels) {
    out->any_name = !read_cubin(image, size, out);
    return CUDA_SUCCESS;
  }
  *error = kMachineCode;
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult parse_text(std::string_view text, code_image *out, const char **error) {
  if (text.find(".version") == text.npos) {
    const bool printable = std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return std::isprint(c) != 0 || std::isspace(c) != 0;
    });
    *error = "the image is neither PTX (no .version directive) nor machine code";
    return printable && !text.empty() ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
  }
  out->kernels = ptx_entries(text);
  return CUDA_SUCCESS;
}

template <class Parse>
CUresult parse_with_logs(const jit_options &jit, std::shared_ptr<const code_image> *out,
                         const Parse &parse) {
  auto image = std::make_shared<code_image>();
  const char *error = "";
  const CUresult r = parse(image.get(), &error);
  jit.write_logs(error);
  if (r == CUDA_SUCCESS) *out = std::move(image);
  return r;
}

void write_log(const jit_options &jit, CUjit_option buffer_option, CUjit_option size_option,
               std::string_view text) {
  char *buffer = nullptr;
  void **size = nullptr;
  for (unsigned i = 0; i < jit.count; ++i) {
    if (jit.options[i] == buffer_option) buffer = static_cast<char *>(jit.values[i]);
    if (jit.options[i] == size_option) size = &jit.values[i];
  }
  if (size == nullptr) return;
  const std::size_t room = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(*size));
  std::size_t filled = 0;
  if (buffer != nullptr && room != 0) {
    filled = std::min(text.size(), room - 1);
    std::memcpy(buffer, text.data(), filled);
    buffer[filled] = '\0';
  }
  *size = reinterpret_cast<void *>(filled);
}

}  // namespace

const image_kernel *code_image::find(std::string_view name) const {
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [&](const image_kernel &k) { return k.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}

const image_variable *code_image::find_variable(std::string_view name) const {
  const auto found = std::find_if(variables.begin(), variables.end(),
                                  [&](const image_variable &v) { return v.name == name; });
  return found == variables.end() ? nullptr : &*found;
}

std::vector<kernel_param> lay_out(const std::vector<std::size_t> &bytes) {
  std::vector<kernel_param> out;
  std::size_t offset = 0;
  for (const std::size_t size : bytes) {
    std::size_t alignment = 1;
    while (alignment < 16 && size % (alignment * 2) == 0) alignment *= 2;
    offset = (offset + alignment - 1) / alignment * alignment;
    out.push_back({offset, size});
    offset += size;
  }
  return out;
}

void jit_options::write_logs(std::string_view error) const {
  write_log(*this, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
  write_log(*this, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
}

CUresult parse_image(const void *image, const jit_options &jit,
                     std::shared_ptr<const code_image> *out) {
  return parse_with_logs(jit, out, [&](code_image *into, const char **error) {
    return is_machine_code(image) ? parse_machine_code(image, std::nullopt, into, error)
                                  : parse_text(static_cast<const char *>(image), into, error);
  });
}

CUresult parse_file(const char *path, const jit_options &jit,
                    std::shared_ptr<const code_image> *out) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_with_logs(jit, out, [&](code_image *into, const char **error) {
    return text.size() >= EI_NIDENT && is_machine_code(text.data())
               ? parse_machine_code(text.data(), text.size(), into, error)
               : parse_text(text, into, error);
  });
}

}  // namespace hostcuda
