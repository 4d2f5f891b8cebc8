// A program that works on device memory for as long as a folder has no file "finish", for tests of Slurm.
//   preload_job FOLDER NAME MEBIBYTES
// It writes FOLDER/NAME.ready once it has its memory, FOLDER/NAME.rounds after each round, and FOLDER/NAME.end, with
// "right" where all bytes are its own in the end. Every byte depends on the name, the round and its place.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/preload/clients/semantics.h"

namespace client {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_bytes = 4 << 20;

// Whole or not at all, for a reader that looks meanwhile.
void write_file(const fs::path &path, const std::string &text) {
  const fs::path part = path.string() + ".part";
  std::ofstream(part) << text << '\n';
  fs::rename(part, path);
}

unsigned char byte_at(std::size_t name, std::uint64_t round, std::size_t at) {
  return static_cast<unsigned char>(((at + 1) * 0x9E3779B97F4A7C15u + name + (round << 58)) >> 56);
}

class job_memory {
 public:
  job_memory(std::string name, std::size_t bytes)
      : name_(std::hash<std::string>()(name)), pieces_(bytes / piece_bytes) {}

  CUresult allocate() {
    for (CUdeviceptr &p : pieces_) {
      if (const CUresult failed = cuMemAlloc(&p, piece_bytes)) return failed;
    }
    return CUDA_SUCCESS;
  }
  int write(std::uint64_t round) {
    std::vector<unsigned char> bytes(piece_bytes);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      fill(bytes, i, round);
      CLIENT_CHECK(cuMemcpyHtoD(pieces_[i], bytes.data(), bytes.size()));
    }
    round_ = round;
    return 0;
  }
  int check() const {
    std::vector<unsigned char> expected(piece_bytes), got(piece_bytes);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      fill(expected, i, round_);
      CLIENT_CHECK(cuMemcpyDtoH(got.data(), pieces_[i], got.size()));
      CLIENT_EXPECT(got == expected);
    }
    return 0;
  }

 private:
  void fill(std::vector<unsigned char> &bytes, std::size_t piece, std::uint64_t round) const {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = byte_at(name_, round, piece * piece_bytes + i);
  }
  const std::size_t name_;
  std::vector<CUdeviceptr> pieces_;
  std::uint64_t round_ = 0;
};

int work(const fs::path &folder, const std::string &name, std::size_t bytes) {
  if (const int failed = use_device(0)) return failed;
  job_memory memory(name, bytes);
  if (const CUresult failed = memory.allocate()) {
    write_file(folder / (name + ".end"),
               failed == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "no memory");
    return 2;
  }
  std::uint64_t round = 0;
  if (const int failed = memory.write(round)) return failed;
  write_file(folder / (name + ".ready"), std::to_string(::getpid()));
  std::error_code none;
  do {
    if (const int failed = memory.check()) return failed;
    if (const int failed = memory.write(++round)) return failed;
    write_file(folder / (name + ".rounds"), std::to_string(round));
    pause(20);
  } while (!fs::exists(folder / "finish", none));
  if (const int failed = memory.check()) return failed;
  write_file(folder / (name + ".end"), "right");
  return 0;
}

}  // namespace
}  // namespace client

int main(int, char **argv) {
  return client::work(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10) << 20);
}
