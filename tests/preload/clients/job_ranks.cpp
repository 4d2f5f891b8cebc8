// A rank of a job of MPI that works on device memory for as long as a folder has no file "finish", for tests of Slurm.
//   preload_job_ranks FOLDER MEBIBYTES
// In each round it sends half of its memory to the next rank, and keeps what the rank before has sent in the other half.
// It writes the files of preload_job, whose NAME is the rank. While the folder has a file RANK.capture, the rank
// captures a graph, and says so by a file RANK.captures.
#define OMPI_SKIP_MPICXX 1  // the deprecated C++ bindings
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/preload/clients/job_memory.h"

namespace client {
namespace {

// Memory with a graph that is captured in it stays on the device.
class capture {
 public:
  explicit capture(const fs::path &name)
      : asked_(name.string() + ".capture"), said_(name.string() + ".captures") {}

  int do_as_asked() {
    if (fs::exists(asked_) == (stream_ != nullptr)) return 0;
    if (stream_ == nullptr) {
      stream_ = new_stream();
      CLIENT_CHECK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
      write_file(said_, "yes");
    } else {
      CUgraph graph = nullptr;
      CLIENT_CHECK(cuStreamEndCapture(stream_, &graph));
      CLIENT_CHECK(cuGraphDestroy(graph));
      CLIENT_CHECK(cuStreamDestroy(stream_));
      stream_ = nullptr;
      fs::remove(said_);
    }
    return 0;
  }

 private:
  const fs::path asked_, said_;
  CUstream stream_ = nullptr;
};

class rank_of_job {
 public:
  rank_of_job(const fs::path &folder, int rank, int ranks, std::size_t bytes)
      : finish_(folder / "finish"),
        name_(folder / std::to_string(rank)),
        next_((rank + 1) % ranks),
        previous_((rank + ranks - 1) % ranks),
        own_(std::to_string(rank), bytes / 2),
        received_(std::to_string(previous_), bytes / 2),
        capture_(name_) {}

  int run() {
    if (const int failed = use_device(0)) return failed;
    CLIENT_CHECK(own_.allocate());
    CLIENT_CHECK(received_.allocate());
    if (const int failed = exchange()) return failed;
    write_file(file("ready"), std::to_string(::getpid()));
    for (bool goes_on = true; goes_on;) {
      if (const int failed = capture_.do_as_asked()) return failed;
      if (const int failed = own_.check() + received_.check()) return failed;
      if (const int failed = exchange()) return failed;
      write_file(file("rounds"), std::to_string(round_));
      pause(20);
      // The same answer for all.
      int mine = fs::exists(finish_) ? 1 : 0, all = 0;
      MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
      goes_on = all == 0;
    }
    if (const int failed = own_.check() + received_.check()) return failed;
    write_file(file("end"), "right");
    return 0;
  }

 private:
  fs::path file(const std::string &kind) const { return name_.string() + "." + kind; }

  int exchange() {
    if (const int failed = own_.write(++round_)) return failed;
    if (const int failed = own_.read(sent_)) return failed;
    got_.resize(sent_.size());
    const int bytes = static_cast<int>(sent_.size());
    MPI_Sendrecv(sent_.data(), bytes, MPI_UNSIGNED_CHAR, next_, 0, got_.data(), bytes,
                 MPI_UNSIGNED_CHAR, previous_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return received_.write(got_, round_);
  }

  const fs::path finish_, name_;
  const int next_, previous_;
  job_memory own_, received_;
  capture capture_;
  std::vector<unsigned char> sent_, got_;
  std::uint64_t round_ = 0;
};

}  // namespace
}  // namespace client

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int failed =
      client::rank_of_job(argv[1], rank, ranks, std::strtoull(argv[2], nullptr, 10) << 20).run();
  if (failed != 0) MPI_Abort(MPI_COMM_WORLD, failed);  // the others wait for it
  MPI_Finalize();
  return failed;
}
