// Code images: PTX text, whose kernels are read, and machine code, which is not looked into. The log
// options of the functions that load them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hostcuda {

// Position in the parameter buffer of a kernel.
struct kernel_param {
  std::size_t offset;
  std::size_t bytes;
};

constexpr int kRegisters = 32;  // of each thread of a kernel that does not say how many it uses

struct kernel_resources {
  int registers = kRegisters;
  int local_bytes = 0;     // of a thread
  int shared_bytes = 0;    // of a block, without dynamic shared memory
  int constant_bytes = 0;  // of the module
};

struct image_kernel {
  std::string name;
  std::vector<kernel_param> params;  // empty for a kernel of machine code
  kernel_resources uses;
};

// A variable of GPU code, in global or constant memory.
struct image_variable {
  std::string name;
  std::size_t bytes;
  std::vector<std::byte> initial;  // empty: zeros
};

struct code_image {
  bool any_name = false;  // machine code that is not read: any name may be a kernel of it
  std::vector<image_kernel> kernels;
  std::vector<image_variable> variables;

  const image_kernel *find(std::string_view name) const;
  const image_variable *find_variable(std::string_view name) const;
};

// Returns the `.entry` directives of PTX text. Skips comments.
std::vector<image_kernel> ptx_entries(std::string_view text);

// Reads the names and resources of kernels, and the variables, of a cubin. `size` is absent for an
// image in memory. Returns false and changes nothing if it is no cubin.
bool read_cubin(const void *image, std::optional<std::size_t> size, code_image *out);

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
