// A program that works on device memory for as long as a folder has no file "finish", for tests of Slurm.
//   preload_job FOLDER NAME MEBIBYTES
// It writes FOLDER/NAME.ready once it has its memory, FOLDER/NAME.rounds after each round, and FOLDER/NAME.end, with
// "right" where all bytes are its own in the end.
#include <unistd.h>

#include <cstdlib>

#include "tests/preload/clients/job_memory.h"

namespace client {
namespace {

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
