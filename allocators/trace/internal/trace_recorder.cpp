#include "stillmap/allocators/trace/internal/trace_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{64} << 10;
constexpr auto longest_kept = std::chrono::milliseconds(250);
constexpr unsigned lines_per_check = 32;  // lines between two reads of the clock

tl::unexpected<error> cannot_write(const char *why, std::string path) {
  return make_system_error(errno, why, std::move(path));
}

struct open_recorders {
  stillmap::mutex mutex;
  std::map<std::string, std::shared_ptr<trace_recorder>> by_path STILLMAP_GUARDED_BY(mutex);
  bool flushed_at_exit STILLMAP_GUARDED_BY(mutex) = false;
};

// Never destroyed: an allocator may outlive all static objects.
open_recorders &all() {
  static undying<open_recorders> recorders;
  return *recorders;
}

}  // namespace

result<std::shared_ptr<trace_recorder>> trace_recorder::open(const std::string &path) {
  open_recorders &r = all();
  const lock_guard lock(r.mutex);
  if (const auto found = r.by_path.find(path);
      found != r.by_path.end() && found->second->process_ == ::getpid()) {
    return found->second;
  }
  // All host memory first: a file that is created is kept.
  std::string own = path, of_process = path + "." + std::to_string(::getpid());
  std::shared_ptr<trace_recorder> recorder(new trace_recorder);
  const auto [entry, fresh] = r.by_path.try_emplace(path);
  constexpr int how = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
  int fd = ::open(own.c_str(), how, 0666);
  if (fd < 0 && errno == EEXIST) {
    own.swap(of_process);
    fd = ::open(own.c_str(), how, 0666);
  }
  if (fd < 0) {
    const auto why = cannot_write("the trace file cannot be created", std::move(own));
    if (fresh) r.by_path.erase(entry);
    return why;
  }
  if (!std::exchange(r.flushed_at_exit, true)) {
    [[maybe_unused]] const int registered = std::atexit([] {
      open_recorders &still = all();
      const lock_guard again(still.mutex);
      for (const auto &[name, known] : still.by_path) known->flush();
    });
  }
  recorder->begin(fd, std::move(own));
  entry->second = recorder;
  return recorder;
}

std::shared_ptr<trace_recorder> trace_recorder::from_environment() {
  const operation_scope scope("caching_allocator");
  const char *const path = ::secure_getenv("STILLMAP_RECORD");
  if (path == nullptr || *path == '\0') return nullptr;
  auto recorder = open(path);
  if (recorder) return std::move(*recorder);
  report_background_error(recorder.error());
  return nullptr;
}

trace_recorder::trace_recorder()
    : process_(::getpid()),
      text_("recorded by stillmap"),
      written_(std::chrono::steady_clock::now()) {}

void trace_recorder::begin(int fd, std::string path) {
  const lock_guard lock(mutex_);
  fd_ = fd;
  path_ = std::move(path);
  write_buffer();
}

trace_recorder::~trace_recorder() {
  flush();
  if (fd_ >= 0) ::close(fd_);
}

// A trace without some of its lines would be another program's: recording ends.
template <class Act>
void trace_recorder::record(Act act) noexcept {
  const operation_scope scope("caching_allocator");
  const lock_guard lock(mutex_);
  if (fd_ < 0) return;
  // The analysis does not know the mutex that `act` requires as this recorder's.
  const status done = with_host_memory([&]() STILLMAP_NO_THREAD_SAFETY_ANALYSIS -> status {
    act();
    return {};
  });
  if (done) return;
  write_buffer();
  end(done.error());
}

void trace_recorder::end(error why) noexcept {
  if (fd_ < 0) return;
  try {
    why = why.about(path_);
  } catch (const std::bad_alloc &) {
    // It is reported without the path.
  }
  report_background_error(why);
  ::close(fd_);
  fd_ = -1;
}

std::uint32_t trace_recorder::stream_number(int device, stream_ref s) {
  const auto next = static_cast<std::uint32_t>(streams_.size());
  // Beyond the limit of the format, all further streams share the last number.
  if (next == trace_max_streams) {
    const auto found = streams_.find({device, s.get()});
    return found != streams_.end() ? found->second : trace_max_streams - 1;
  }
  return streams_.try_emplace({device, s.get()}, next).first->second;
}

void trace_recorder::allocated(const void *owner, const void *block, std::size_t bytes, int device,
                               stream_ref s) {
  record([&]() STILLMAP_REQUIRES(mutex_) {
    const live_block b{next_id_++, owner, stream_number(device, s)};
    live_[block] = b;
    text_.allocate(b.id, bytes, b.stream);
    flush_if_due();
  });
}

void trace_recorder::used(const void *block, int device, stream_ref s) {
  record([&]() STILLMAP_REQUIRES(mutex_) {
    const auto found = live_.find(block);
    if (found == live_.end()) return;
    const std::uint32_t on = stream_number(device, s);
    if (on == found->second.stream) return;
    text_.use(found->second.id, on);
    flush_if_due();
  });
}

void trace_recorder::freed(const void *block) {
  record([&]() STILLMAP_REQUIRES(mutex_) {
    const auto found = live_.find(block);
    if (found == live_.end()) return;
    text_.free(found->second.id);
    live_.erase(found);
    flush_if_due();
  });
}

void trace_recorder::iteration() {
  record([&]() STILLMAP_REQUIRES(mutex_) {
    text_.iteration();
    write_buffer();
  });
}

void trace_recorder::owner_destroyed(const void *owner) {
  record([&]() STILLMAP_REQUIRES(mutex_) {
    std::map<std::uint64_t, const void *> its;  // ordered by allocation
    for (const auto &[block, b] : live_) {
      if (b.owner == owner) its.emplace(b.id, block);
    }
    for (const auto &[id, block] : its) {
      text_.free(id);
      live_.erase(block);
    }
    write_buffer();
  });
}

void trace_recorder::flush() {
  const lock_guard lock(mutex_);
  write_buffer();
}

void trace_recorder::flush_if_due() noexcept {
  if (text_.text().size() >= buffer_bytes) return write_buffer();
  if (++lines_since_check_ < lines_per_check) return;
  lines_since_check_ = 0;
  if (std::chrono::steady_clock::now() - written_ >= longest_kept) write_buffer();
}

void trace_recorder::write_buffer() noexcept {
  const operation_scope scope("caching_allocator");
  if (fd_ < 0) return;
  if (process_ != ::getpid()) {  // a forked child: the file belongs to its parent
    ::close(fd_);
    fd_ = -1;
    return;
  }
  const std::string &text = text_.text();
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd_, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      end(make_system_error(errno, "the trace cannot be written; recording ends").value());
      break;
    }
    at += static_cast<std::size_t>(n);
  }
  text_.clear();
  written_ = std::chrono::steady_clock::now();
}

}  // namespace stillmap
