#include "stillmap/checkpoint/publication/internal/holder_store.h"

#include <utility>

namespace stillmap::publication {

holder_store::lease::~lease() {
  const lock_guard lock(store_.mutex_);
  store_.leases_.erase(this);
}

holder_store::claim::~claim() {
  const lock_guard lock(store_.mutex_);
  const auto name = store_.names_.find(name_);
  name->second.claimed = false;
  store_.tidy_locked(name);
  ++store_.changes_;
  store_.changed_.notify_all();
}

void holder_store::tidy_locked(name_map::iterator name) {
  known_name &k = name->second;
  std::erase_if(k.all, [](const auto &g) { return g.second.expired(); });
  if (!k.newest && !k.claimed && k.all.empty()) names_.erase(name);
}

std::uint64_t holder_store::publish(std::shared_ptr<held_memory> memory) {
  std::shared_ptr<const held_memory> before;  // closes its descriptors after the lock is released
  const lock_guard lock(mutex_);
  for (auto n = names_.begin(); n != names_.end();) tidy_locked(n++);
  const auto [name, made] = names_.try_emplace(memory->about.name);
  const std::uint64_t generation = last_generation_ + 1;
  memory->about.generation = generation;
  try {
    name->second.all.emplace(generation, memory);
  } catch (...) {
    tidy_locked(name);
    throw;
  }
  last_generation_ = generation;
  before = std::exchange(name->second.newest, std::move(memory));
  ++changes_;
  changed_.notify_all();
  return generation;
}

std::shared_ptr<holder_store::lease> holder_store::find(const std::string &name,
                                                        std::uint64_t generation, pid_t reader,
                                                        const image::sha256 &id) {
  std::shared_ptr<lease> out;  // its destructor locks: not while the lock is held
  const lock_guard lock(mutex_);
  const auto known = names_.find(name);
  if (known == names_.end()) return nullptr;
  const bool newest = generation == 0 && id.is_zero();
  std::shared_ptr<const held_memory> memory = newest ? known->second.newest : nullptr;
  for (const auto &[number, weak] : known->second.all) {
    if (newest || (generation != 0 && number != generation)) continue;
    const auto held = weak.lock();
    if (held && (id.is_zero() || held->about.id == id)) memory = held;
  }
  if (!memory) return nullptr;
  const auto place = leases_.insert(nullptr).first;  // what may throw, first
  auto node = leases_.extract(place);
  out = std::make_shared<lease>(*this, std::move(memory), reader);
  node.value() = out.get();
  leases_.insert(std::move(node));
  return out;
}

std::shared_ptr<holder_store::claim> holder_store::try_claim(const std::string &name) {
  const lock_guard lock(mutex_);
  const auto known = names_.find(name);
  if (known != names_.end() && (known->second.newest || known->second.claimed)) return nullptr;
  const auto place = known != names_.end() ? known : names_.try_emplace(name).first;
  struct forget_unless_claimed {
    holder_store &store;
    name_map::iterator place;
    ~forget_unless_claimed() STILLMAP_NO_THREAD_SAFETY_ANALYSIS { store.tidy_locked(place); }
  } const tidy{*this, place};
  auto out = std::make_shared<claim>(*this, name);
  place->second.claimed = true;
  return out;
}

std::uint64_t holder_store::changes() const {
  const lock_guard lock(mutex_);
  return changes_;
}

void holder_store::wait(std::uint64_t seen, std::chrono::milliseconds time) {
  unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&]() STILLMAP_REQUIRES(mutex_) { return changes_ != seen; });
}

std::uint64_t holder_store::withdraw(const std::string &name) {
  std::shared_ptr<const held_memory> newest;  // as in publish()
  const lock_guard lock(mutex_);
  const auto known = names_.find(name);
  if (known == names_.end() || !known->second.newest) return 0;
  newest = std::exchange(known->second.newest, nullptr);
  return newest->about.generation;
}

std::vector<held_publication> holder_store::list() const {
  std::vector<std::shared_ptr<const held_memory>> alive;  // not the last ones under the lock
  std::vector<held_publication> out;
  const lock_guard lock(mutex_);
  for (const auto &[name, known] : names_) {
    for (const auto &[generation, weak] : known.all) {
      const auto memory = weak.lock();
      if (!memory) continue;
      alive.push_back(memory);
      held_publication &p = out.emplace_back(memory->about);
      p.newest = memory == known.newest;
      for (const lease *l : leases_) {
        if (&l->memory() == memory.get()) p.readers.push_back(l->reader());
      }
    }
  }
  return out;
}

std::size_t holder_store::open_fds() const {
  const lock_guard lock(mutex_);
  return open_fds_locked();
}

std::size_t holder_store::open_fds_locked() const {
  std::size_t sum = expected_fds_ + leases_.size();
  for (const auto &[name, known] : names_) {
    for (const auto &[generation, weak] : known.all) {
      if (const auto memory = weak.lock()) sum += memory->pages.size();
    }
  }
  return sum;
}

holder_store::admission::~admission() {
  const lock_guard lock(store_.mutex_);
  store_.waiting_ -= waiting_;
  store_.expected_fds_ -= fds_;
}

std::shared_ptr<holder_store::admission> holder_store::admit_waiting(std::size_t limit) {
  const lock_guard lock(mutex_);
  if (waiting_ >= limit) return nullptr;
  auto out = std::make_shared<admission>(*this, 1, 0);
  ++waiting_;
  return out;
}

std::shared_ptr<holder_store::admission> holder_store::admit_fds(std::size_t fds,
                                                                 std::size_t limit) {
  const lock_guard lock(mutex_);
  const std::size_t used = open_fds_locked();
  if (used > limit || fds > limit - used) return nullptr;
  auto out = std::make_shared<admission>(*this, 0, fds);
  expected_fds_ += fds;
  return out;
}

}  // namespace stillmap::publication
