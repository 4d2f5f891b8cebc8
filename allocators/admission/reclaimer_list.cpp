#include "stillmap/allocators/admission/reclaimer_list.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace stillmap {

class reclaimer_list::registration final : public reclaimer_registration {
 public:
  registration(std::shared_ptr<reclaimer_list> in, std::shared_ptr<entry> e,
               std::function<void()> changed)
      : list_(std::move(in)), entry_(std::move(e)), changed_(std::move(changed)) {}
  ~registration() override {
    // A forked child has none of the threads that may be in it, or hold the list's lock.
    if (::getpid() != process_) return;
    list_->remove(entry_);
    changed_();
  }
  registration(const registration &) = delete;

 private:
  const std::shared_ptr<reclaimer_list> list_;
  const std::shared_ptr<entry> entry_;
  const std::function<void()> changed_;
  const pid_t process_ = ::getpid();
};

std::unique_ptr<reclaimer_registration> reclaimer_list::add(reclaim_kind kind, function reclaim,
                                                            std::function<void()> changed) {
  const auto e = std::make_shared<entry>();
  e->kind = kind;
  e->reclaim = std::move(reclaim);
  auto made = std::make_unique<registration>(shared_from_this(), e, std::move(changed));
  const lock_guard lock(mutex_);
  entries_.push_back(e);
  return made;
}

std::uint8_t reclaimer_list::offers() const {
  const lock_guard lock(mutex_);
  unsigned bits = 0;
  for (const auto &e : entries_) bits |= 1u << static_cast<unsigned>(e->kind);
  return static_cast<std::uint8_t>(bits);
}

reclaimer_list::outcome reclaimer_list::reclaim(reclaim_kind kind, std::uint64_t bytes) noexcept {
  outcome out;
  const auto self = std::this_thread::get_id();
  unique_lock lock(mutex_);
  for (std::size_t i = 0; i < entries_.size() && out.released < bytes; ++i) {
    const std::shared_ptr<entry> e = entries_[i];
    if (e->kind != kind || e->removed) continue;
    try {
      e->callers.push_back(self);
    } catch (const std::bad_alloc &) {
      continue;
    }
    lock.unlock();
    const std::uint64_t released = e->reclaim(bytes - out.released);
    lock.lock();
    if (released == reclaim_later) {
      out.later = true;
    } else {
      out.released += released;
    }
    e->callers.erase(std::find(e->callers.begin(), e->callers.end(), self));
    returned_.notify_all();
  }
  return out;
}

void reclaimer_list::remove(const std::shared_ptr<entry> &e) {
  const auto self = std::this_thread::get_id();
  unique_lock lock(mutex_);
  e->removed = true;
  returned_.wait(lock, [&] {
    return std::all_of(e->callers.begin(), e->callers.end(),
                       [&](std::thread::id t) { return t == self; });
  });
  std::erase(entries_, e);
}

}  // namespace stillmap
