#include "examples/criu/task.h"

#include <csignal>
#include <cstdint>
#include <numeric>

#include "examples/example.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/checkpoint/process/process_checkpoint.h"
#include "stillmap/vmm/device_vector.h"

using namespace stillmap;

namespace criu_example {
namespace {

void print(const char *what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

sigset_t both_signals() {
  sigset_t both;
  sigemptyset(&both);
  sigaddset(&both, SIGUSR1);
  sigaddset(&both, SIGUSR2);
  return both;
}

int next_signal() {
  const sigset_t both = both_signals();
  int got = 0;
  if (sigwait(&both, &got) != 0) example::stop("no signal");
  return got;
}

// Blocks the signals, also for threads that the driver will start, so that sigwait() gets them.
void block_signals() {
  const sigset_t both = both_signals();
  if (sigprocmask(SIG_BLOCK, &both, nullptr) != 0) example::stop("no signal mask");
}

// Prepares for a dump at each SIGUSR1; resumes at SIGUSR2, and ends.
template <class Prepare, class Resume>
int serve(Prepare prepare, Resume resume) {
  print("ready");
  while (next_signal() == SIGUSR1) {
    prepare();
    print("prepared");
  }
  resume();
  print("resumed");
  return 0;
}

// A block of the allocator: the device address of the next one, and data.
struct node {
  std::uint64_t next = 0;
  std::uint64_t values[511] = {};
};

class task {
 public:
  task()
      : device_(example::must(device::open())),
        stream_(example::must(stream::create(device_))),
        heap_(example::must(caching_allocator::create(device_, {.tag = "heap"}))),
        numbers_(example::must(device_vector<std::uint32_t>::create(
            device_, {.buffer = {.reserve_bytes = std::size_t{1} << 30, .tag = "numbers"}},
            stream_))) {
    grow();
    for (std::size_t i = 0; i < nodes; ++i) {
      blocks_.push_back(example::must(heap_->allocate(sizeof(node), stream_)));
    }
    for (std::size_t i = 0; i < nodes; ++i) {
      const node n = expected_node(i);
      example::write(device_, address_of(blocks_[i]), &n, sizeof n);
    }
    first_ = numbers_.data();
  }

  void check() {
    example::check(numbers_.data() == first_, "the vector has its address");
    const auto seen = example::read<std::uint32_t>(device_, numbers_.address(), numbers_.size());
    example::check(seen == counted(numbers_.size()), "the vector has its elements");
    std::uint64_t at = address_of(blocks_[0]).value();
    for (std::size_t i = 0; i < nodes; ++i) {
      const node n = example::read<node>(device_, device_address(at), 1).front();
      const node expected = expected_node(i);
      if (n.next != expected.next || !std::equal(n.values, n.values + 511, expected.values)) {
        example::stop("block " + std::to_string(i) + " has other contents");
      }
      at = n.next;
    }
    example::check(at == address_of(blocks_[0]).value(), "pointers between blocks form a cycle");
  }

  // Evicts the heap to host memory. The vector stays on the device.
  void prepare() {
    example::must(stream_.synchronize());
    process::prepare_options options;
    if (device_.capabilities().vmm) options.evict = {"heap"};  // only pages can be evicted
    const process::prepare_report p = example::must(checkpoint_->prepare(options));
    std::printf("evicted: %.1f MiB of the heap; the device has %.1f MiB more free memory\n",
                mib(p.bytes), mib(p.released.bytes()));
  }
  void resume() { example::must(checkpoint_->resume()); }

  void continue_work() {
    grow();
    if (!device_.capabilities().vmm) first_ = numbers_.data();  // grew by copying
    example::check(numbers_.data() == first_, "the vector grew in place");
    example::must(heap_->free(blocks_.back()));
    blocks_.back() = example::must(heap_->allocate(sizeof(node), stream_));
    const node n = expected_node(nodes - 1);
    example::write(device_, address_of(blocks_.back()), &n, sizeof n);
    blocks_.push_back(example::must(heap_->allocate(std::size_t{24} << 20, stream_)));
  }

 private:
  static constexpr std::size_t nodes = 300;

  static double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
  static std::vector<std::uint32_t> counted(std::size_t n) {
    std::vector<std::uint32_t> out(n);
    std::iota(out.begin(), out.end(), 1U);
    return out;
  }
  static device_address address_of(void *block) {
    return device_address(reinterpret_cast<std::uintptr_t>(block));
  }
  node expected_node(std::size_t i) const {
    node n;
    n.next = address_of(blocks_[(i + 1) % nodes]).value();
    for (std::size_t k = 0; k < 511; ++k) n.values[k] = i * 1000003 + k;
    return n;
  }
  void grow() {
    const std::size_t before = numbers_.size();
    const auto all = counted(before + (std::size_t{3} << 20));
    example::must(numbers_.append(std::span(all).subspan(before)));
  }

  device device_;
  stream stream_;
  std::unique_ptr<caching_allocator> heap_;
  device_vector<std::uint32_t> numbers_;
  std::unique_ptr<process::process_checkpoint> checkpoint_ =
      example::must(process::process_checkpoint::create({device_}));
  std::vector<void *> blocks_;
  const std::uint32_t *first_ = nullptr;
};

}  // namespace

int run_task() {
  block_signals();
  task t;
  t.check();
  return serve([&] { t.prepare(); },
               [&] {
                 t.resume();
                 t.check();
                 t.continue_work();
                 t.check();
               });
}

int run_without_device() {
  block_signals();
  return serve([] {}, [] {});
}

}  // namespace criu_example
