// What programs have that tests run as jobs: files of a folder that say how far they are, and device memory of which every
// byte depends on a name, the round and its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/preload/clients/semantics.h"

namespace client {

namespace fs = std::filesystem;

constexpr std::size_t piece_bytes = 4 << 20;

// Whole or not at all, for a reader that looks meanwhile.
inline void write_file(const fs::path &path, const std::string &text) {
  const fs::path part = path.string() + ".part";
  std::ofstream(part) << text << '\n';
  fs::rename(part, path);
}

inline unsigned char byte_at(std::size_t name, std::uint64_t round, std::size_t at) {
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
  // What another process has written of the same name and size, and has sent as read() returned it.
  int write(const std::vector<unsigned char> &sent, std::uint64_t round) {
    CLIENT_EXPECT(sent.size() == pieces_.size() * piece_bytes);
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      CLIENT_CHECK(cuMemcpyHtoD(pieces_[i], &sent[i * piece_bytes], piece_bytes));
    round_ = round;
    return 0;
  }
  int read(std::vector<unsigned char> &into) const {
    into.resize(pieces_.size() * piece_bytes);
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      CLIENT_CHECK(cuMemcpyDtoH(&into[i * piece_bytes], pieces_[i], piece_bytes));
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

}  // namespace client
