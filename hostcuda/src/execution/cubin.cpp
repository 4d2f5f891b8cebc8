// Cubins: ELF files whose sections and symbols name the kernels and variables of the code.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>

#include "hostcuda/src/execution/image.h"

namespace hostcuda {
namespace {

// The values that NVIDIA adds to those of ELF, as `readelf` shows them for files that ptxas writes.
constexpr unsigned char kAbis[] = {0x33, 0x41};  // of CUDA up to 12 and of 13
constexpr unsigned kMachine = 190;               // EM_CUDA
constexpr unsigned char kEntry = 0x10;           // in st_other of a function: it is a kernel
constexpr std::size_t kReservedShared = 1024;    // of each block, where the file says so

// Records of .nv.info: the form of a record, its subject, and 16 bits that are its size or value.
constexpr unsigned char kSized = 4;
constexpr unsigned char kRegisterCount = 0x2F;  // payload: symbol, count
constexpr unsigned char kFrameSize = 0x11;      // payload: symbol, bytes

class elf_file {
 public:
  // `size` is absent for an image in memory, which is trusted to have what its tables say.
  static std::optional<elf_file> open(const std::byte *image, std::optional<std::size_t> size) {
    elf_file out;
    out.base_ = image;
    if (size && *size < sizeof(Elf64_Ehdr)) return std::nullopt;
    const auto header = out.at<Elf64_Ehdr>(0);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachine ||
        header.e_shentsize != sizeof(Elf64_Shdr)) {
      return std::nullopt;
    }
    const std::uint64_t end = header.e_shoff + std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
    if (header.e_shoff > kLargest || (size && end > *size)) return std::nullopt;
    for (unsigned i = 0; i < header.e_shnum; ++i)
      out.sections_.push_back(out.at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    for (const Elf64_Shdr &s : out.sections_) {
      if (s.sh_type == SHT_NOBITS) continue;
      if (s.sh_offset > kLargest || s.sh_size > kLargest) return std::nullopt;
      if (size && s.sh_offset + s.sh_size > *size) return std::nullopt;
    }
    if (header.e_shstrndx >= out.sections_.size()) return std::nullopt;
    out.names_ = out.sections_[header.e_shstrndx];
    for (std::size_t i = 0; i < out.sections_.size(); ++i)
      out.by_name_.emplace(out.name(out.sections_[i]), i);
    return out;
  }

  std::span<const Elf64_Shdr> sections() const { return sections_; }

  std::string_view name(const Elf64_Shdr &s) const { return text(names_, s.sh_name); }

  std::string_view text(const Elf64_Shdr &strings, std::size_t offset) const {
    const auto all = content(strings);
    if (offset >= all.size()) return {};
    const auto *const begin = reinterpret_cast<const char *>(all.data()) + offset;
    return {begin, strnlen(begin, all.size() - offset)};
  }

  std::span<const std::byte> content(const Elf64_Shdr &s) const {
    if (s.sh_type == SHT_NOBITS) return {};
    return {base_ + s.sh_offset, s.sh_size};
  }

  template <class T>
  T at(std::size_t offset) const {
    T out;  // a file need not be aligned
    std::memcpy(&out, base_ + offset, sizeof out);
    return out;
  }

  const Elf64_Shdr *find(std::string_view wanted) const {
    const auto found = by_name_.find(wanted);
    return found == by_name_.end() ? nullptr : &sections_[found->second];
  }

 private:
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;

  const std::byte *base_ = nullptr;
  std::vector<Elf64_Shdr> sections_;
  Elf64_Shdr names_{};
  std::unordered_map<std::string_view, std::size_t> by_name_;  // a library has thousands
};

struct symbol {
  Elf64_Sym raw;
  std::string name;
};

std::vector<symbol> symbols_of(const elf_file &file) {
  std::vector<symbol> out;
  for (const Elf64_Shdr &s : file.sections()) {
    if (s.sh_type != SHT_SYMTAB || s.sh_link >= file.sections().size()) continue;
    for (std::size_t i = 0; i + sizeof(Elf64_Sym) <= s.sh_size; i += sizeof(Elf64_Sym)) {
      const auto raw = file.at<Elf64_Sym>(s.sh_offset + i);
      out.push_back({raw, std::string(file.text(file.sections()[s.sh_link], raw.st_name))});
    }
    break;
  }
  return out;
}

// Calls use(subject, payload) for each record with a payload.
template <class Use>
void each_record(std::span<const std::byte> content, const Use &use) {
  for (std::size_t i = 0; i + 4 <= content.size();) {
    std::uint16_t extra = 0;
    std::memcpy(&extra, content.data() + i + 2, sizeof extra);
    const bool sized = std::to_integer<unsigned char>(content[i]) == kSized;
    const std::size_t bytes = sized ? extra : 0;
    if (bytes > content.size() - i - 4) return;
    if (sized) use(std::to_integer<unsigned char>(content[i + 1]), content.subspan(i + 4, bytes));
    i += 4 + bytes;
  }
}

// Registers and local memory, which .nv.info has by the number of the symbol. `kernels` has the place
// of each in the image, by that number too.
void read_info(const elf_file &file, const std::unordered_map<std::size_t, std::size_t> &kernels,
               code_image *out) {
  const Elf64_Shdr *const info = file.find(".nv.info");
  if (info == nullptr) return;
  each_record(file.content(*info), [&](unsigned char subject, std::span<const std::byte> payload) {
    std::uint32_t words[2];
    if (payload.size() < sizeof words) return;
    std::memcpy(words, payload.data(), sizeof words);
    const auto found = kernels.find(words[0]);
    if (found == kernels.end()) return;
    kernel_resources &uses = out->kernels[found->second].uses;
    if (subject == kRegisterCount) uses.registers = static_cast<int>(words[1]);
    if (subject == kFrameSize) uses.local_bytes = static_cast<int>(words[1]);
  });
}

int shared_bytes(const elf_file &file, const std::string &kernel) {
  const Elf64_Shdr *const shared = file.find(".nv.shared." + kernel);
  if (shared == nullptr) return 0;
  const std::size_t system = file.find(".nv.shared.reserved.0") != nullptr ? kReservedShared : 0;
  return static_cast<int>(shared->sh_size - std::min<std::size_t>(shared->sh_size, system));
}

void add_variable(const elf_file &file, const symbol &s, code_image *out) {
  if (s.raw.st_shndx >= file.sections().size() || s.raw.st_size == 0) return;
  const Elf64_Shdr &section = file.sections()[s.raw.st_shndx];
  const std::string_view where = file.name(section);
  if (!where.starts_with(".nv.global") && where != ".nv.constant3") return;
  image_variable v{s.name, s.raw.st_size, {}};
  const auto content = file.content(section);
  if (s.raw.st_value <= content.size() && v.bytes <= content.size() - s.raw.st_value) {
    const auto initial = content.subspan(s.raw.st_value, v.bytes);
    v.initial.assign(initial.begin(), initial.end());
  }
  out->variables.push_back(std::move(v));
}

}  // namespace

bool read_cubin(const void *image, std::optional<std::size_t> size, code_image *out) {
  const auto *const bytes = static_cast<const std::byte *>(image);
  const auto abi = std::to_integer<unsigned char>(bytes[EI_OSABI]);
  if (std::find(std::begin(kAbis), std::end(kAbis), abi) == std::end(kAbis)) return false;
  const auto file = elf_file::open(bytes, size);
  if (!file) return false;
  const Elf64_Shdr *const constants = file->find(".nv.constant3");
  const auto symbols = symbols_of(*file);
  std::unordered_map<std::size_t, std::size_t> kernels;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const symbol &s = symbols[i];
    const unsigned type = ELF64_ST_TYPE(s.raw.st_info);
    if (type == STT_FUNC && (s.raw.st_other & kEntry) != 0) {
      image_kernel kernel{s.name, {}, {}};
      kernel.uses.shared_bytes = shared_bytes(*file, s.name);
      if (constants != nullptr) kernel.uses.constant_bytes = static_cast<int>(constants->sh_size);
      kernels.emplace(i, out->kernels.size());
      out->kernels.push_back(std::move(kernel));
    } else if (type == STT_OBJECT) {  // local ones too: nvcc makes all of them local
      add_variable(*file, s, out);
    }
  }
  read_info(*file, kernels, out);
  return true;
}

}  // namespace hostcuda
