#include "hostcuda/src/execution/shared_event.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

namespace hostcuda {

struct shared_event::page {
  std::uint64_t magic;
  std::atomic<std::uint64_t> last;
  // The recording of number n puts n at n % kSlots: recordings complete in any order. One that is
  // overwritten is older than kSlots others and counts as done.
  static constexpr std::size_t kSlots = 510;
  std::atomic<std::uint64_t> completed[kSlots];
};

namespace {

constexpr std::uint64_t kEventMagic = 0x3130'6576'6370'6968;  // "hipcev01"

struct event_name {
  std::uint64_t magic;
  file_name page;
};
static_assert(sizeof(event_name) <= sizeof(CUipcEventHandle));
static_assert(sizeof(shared_event::page) == 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

shared_event::page *map_page(const shared_file &file) {
  void *const at =
      mmap(nullptr, sizeof(shared_event::page), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  return at == MAP_FAILED ? nullptr : static_cast<shared_event::page *>(at);
}

}  // namespace

std::shared_ptr<shared_event> shared_event::create() {
  shared_file file = make_file("hostcuda-event", &kEventMagic, sizeof kEventMagic);
  if (file.fd() < 0 || ftruncate(file.fd(), sizeof(page)) != 0) return nullptr;
  page *const p = map_page(file);
  return p == nullptr ? nullptr : std::make_shared<shared_event>(std::move(file), p);
}

CUresult shared_event::open(const CUipcEventHandle &handle, std::shared_ptr<shared_event> *out) {
  event_name name;
  std::memcpy(&name, &handle, sizeof name);
  if (name.magic != kEventMagic) return CUDA_ERROR_INVALID_HANDLE;
  shared_file file;
  if (const CUresult r = open_file(name.page, &file); r != CUDA_SUCCESS) return r;
  std::uint64_t magic = 0;
  struct stat st {};
  if (!read_start(file, &magic, sizeof magic) || magic != kEventMagic ||
      fstat(file.fd(), &st) != 0 || st.st_size != sizeof(page))
    return CUDA_ERROR_INVALID_HANDLE;
  if (name.page.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  page *const p = map_page(file);
  if (p == nullptr) return CUDA_ERROR_MAP_FAILED;
  *out = std::make_shared<shared_event>(shared_file{}, p);
  return CUDA_SUCCESS;
}

shared_event::~shared_event() {
  munmap(page_, sizeof(page));
}

CUipcEventHandle shared_event::handle() const {
  CUipcEventHandle out{};
  const event_name name{kEventMagic, name_of(file_.fd())};
  std::memcpy(&out, &name, sizeof name);
  return out;
}

std::uint64_t shared_event::record() {
  return page_->last.fetch_add(1) + 1;
}

void shared_event::complete(std::uint64_t number) {
  page_->completed[number % page::kSlots].store(number, std::memory_order_release);
}

std::uint64_t shared_event::last() const {
  return page_->last.load(std::memory_order_acquire);
}

bool shared_event::done(std::uint64_t number) const {
  return page_->completed[number % page::kSlots].load(std::memory_order_acquire) >= number;
}

}  // namespace hostcuda
