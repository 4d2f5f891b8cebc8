// Code images: PTX text, whose kernels are read, and machine code, which is not looked into. The log
// options of the functions that load them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hostcuda {

// Position in the parameter buffer of a kernel.
struct kernel_param {
  std::size_t offset;
  std::size_t bytes;
};

struct image_kernel {
  std::string name;
  std::vector<kernel_param> params;
};

struct code_image {
  bool machine_code = false;  // a cubin or fat binary: any name may be a kernel of it
  std::vector<image_kernel> kernels;

  const image_kernel *find(std::string_view name) const;
};

// Returns the `.entry` directives of PTX text. Skips comments.
std::vector<image_kernel> ptx_entries(std::string_view text);

// Lays parameters of these sizes out, each at its natural alignment.
std::vector<kernel_param> lay_out(const std::vector<std::size_t> &bytes);

// CUjit_option arguments of a call. There is no JIT compiler; only the log buffers have an effect.
struct jit_options {
  unsigned count;
  CUjit_option *options;
  void **values;

  bool valid() const { return count == 0 || (options != nullptr && values != nullptr); }
  // Fills the log buffers and writes back the bytes filled, without the terminating zero.
  void write_logs(std::string_view error) const;
};

// Parse an image or a file. Errors: NO_BINARY_FOR_GPU for machine code, unless kernels=skip.
CUresult parse_image(const void *image, const jit_options &jit,
                     std::shared_ptr<const code_image> *out);
CUresult parse_file(const char *path, const jit_options &jit,
                    std::shared_ptr<const code_image> *out);

}  // namespace hostcuda
