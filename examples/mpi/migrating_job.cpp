// A job of MPI whose ranks move to other machines together: each is controlled over a socket of its own, and all stop
// at the same step.
//   mpirun -n 4 migrating_job STEPS     runs so many steps, or until all memory has moved
//   migrating_job check IMAGE           prints the number that every byte of a saved rank has
// While it runs, on each of whose destinations `stillmap task migrate receive` waits:
//   stillmap task migrate send name:migrating_job --each --all --to HOST:4711-4714 ...
// docs/migration_groups.md
#define OMPI_SKIP_MPICXX 1  // the deprecated C++ bindings
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "examples/example.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t bytes = 8u << 20;

growable_buffer create_movable_buffer(const device &d, int rank) {
  const auto pool = example::must(page_pool::create(d, {.exportable = handle_type::posix_fd}));
  // Far from what Linux chooses, so that the addresses are free at the destination; and other ones for each rank, so that
  // one process can receive several.
  const device_address hint(0x2000'0000'0000 + (static_cast<std::uint64_t>(rank) << 30));
  auto buffer = example::must(growable_buffer::create(
      d, {.reserve_bytes = 64u << 20, .tag = "field", .hint = hint, .pools = {pool}}));
  example::must(buffer.resize(bytes));
  return buffer;
}

// What the control server's thread asks of the one that calls MPI.
class stop_request {
 public:
  // Returns once this rank's thread has come to a step at which all ranks stop.
  status wait_until_stopped(std::stop_token cancel) {
    std::unique_lock lock(mutex_);
    asked_ = true;
    if (changed_.wait(lock, cancel, [this] { return stopped_; })) return {};
    asked_ = false;
    return make_error(errc::operation_canceled, "the other ranks did not stop");
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    asked_ = stopped_ = false;
  }
  void memory_has_moved() {
    const std::lock_guard lock(mutex_);
    moved_ = true;
  }

  // Before each step, by all ranks: stays here while one of them is asked to stop. Otherwise a rank would wait in a
  // collective for one that has stopped before it. Returns whether a step follows; no: all memory has moved.
  bool agree(MPI_Comm ranks) {
    for (;;) {
      int mine[2] = {};
      {
        const std::lock_guard lock(mutex_);
        mine[0] = asked_;
        mine[1] = !moved_;
      }
      int all[2] = {};
      MPI_Allreduce(mine, all, 2, MPI_INT, MPI_MAX, ranks);
      if (all[1] == 0) return false;
      if (all[0] == 0) return true;
      {
        const std::lock_guard lock(mutex_);
        stopped_ = asked_;
        changed_.notify_all();
      }
      std::this_thread::sleep_for(1ms);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool asked_ = false, stopped_ = false, moved_ = false;
};

int check(const char *image) {
  const device d = example::open_mapping_device("restoring memory");
  const auto restored = example::must(snapshot::restore(d, image));
  const auto seen =
      example::read<unsigned char>(d, restored.memory.tagged("field").front().begin, bytes);
  const bool equal = std::equal(seen.begin() + 1, seen.end(), seen.begin());
  std::printf("%d\n", equal ? seen.front() : -1);
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc == 3 && std::string(argv[1]) == "check") return check(argv[2]);
  int given = 0, rank = 0;
  // One thread of each rank calls MPI.
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &given);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const long steps = argc > 1 ? std::atol(argv[1]) : 100;
  const device d = example::open_mapping_device("moving memory");
  growable_buffer field = create_movable_buffer(d, rank);
  stop_request stop;
  control::server_options options;
  options.task.quiesce = [&](auto, std::stop_token cancel) {
    return stop.wait_until_stopped(std::move(cancel));
  };
  options.task.resume = [&](auto) { stop.go_on(); };
  options.task.released = [&](auto) { stop.memory_has_moved(); };
  const std::string socket = "@stillmap-" + std::to_string(getpid()) + ".control";
  const auto server = example::must(control::server::create(d, socket, options));

  long step = 0;
  while (step < steps && stop.agree(MPI_COMM_WORLD)) {
    ++step;
    // Every byte of each rank is the step, plus the rank.
    const std::vector<unsigned char> all(bytes, static_cast<unsigned char>(step + rank));
    example::write(d, field.address(), all.data(), all.size());
    long sum = 0;
    MPI_Allreduce(&step, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (step == 1 && rank == 0) {
      std::printf("running\n");
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(5ms);
  }
  const bool moved = d.space().stats().mapped_bytes == 0;
  std::printf("rank %d: %ld steps, its memory %s\n", rank, step, moved ? "has moved" : "is here");
  MPI_Finalize();
  return 0;
}
