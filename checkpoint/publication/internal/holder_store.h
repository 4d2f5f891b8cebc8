// What a holder keeps: descriptors of pages, by name and generation, and who reads them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "stillmap/checkpoint/publication/publication.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::publication {

// One generation. Not changed once it is published.
struct held_memory {
  held_publication about;  // without readers
  std::uint64_t page_bytes = 0;
  std::vector<std::byte> manifest;  // encoded
  std::vector<fork_closed_fd> pages;
};

// Threads: safe.
class holder_store {
 public:
  // A reader of one generation, which stays while it is read. Its destructor takes it from the list.
  class lease {
   public:
    lease(holder_store &store, std::shared_ptr<const held_memory> memory, pid_t reader)
        : store_(store), memory_(std::move(memory)), reader_(reader) {}
    ~lease();
    lease(const lease &) = delete;
    const held_memory &memory() const { return *memory_; }
    pid_t reader() const { return reader_; }

   private:
    holder_store &store_;
    const std::shared_ptr<const held_memory> memory_;
    const pid_t reader_;
  };
  // The right to publish a name first. Its destructor gives it up.
  class claim {
   public:
    claim(holder_store &store, std::string name) : store_(store), name_(std::move(name)) {}
    ~claim();
    claim(const claim &) = delete;

   private:
    holder_store &store_;
    const std::string name_;
  };

  // What is counted while it exists: a client that waits, or descriptors that are about to come.
  class admission {
   public:
    admission(holder_store &store, std::size_t waiting, std::size_t fds)
        : store_(store), waiting_(waiting), fds_(fds) {}
    ~admission();
    admission(const admission &) = delete;

   private:
    holder_store &store_;
    const std::size_t waiting_, fds_;
  };

  // Null: so many clients wait already.
  std::shared_ptr<admission> admit_waiting(std::size_t limit) STILLMAP_EXCLUDES(mutex_);
  // Null: with `fds` more, there would be more than `limit` descriptors.
  std::shared_ptr<admission> admit_fds(std::size_t fds, std::size_t limit)
      STILLMAP_EXCLUDES(mutex_);
  // Makes it the newest generation of its name, and returns which. The one before stays as long as it has
  // leases.
  std::uint64_t publish(std::shared_ptr<held_memory> memory) STILLMAP_EXCLUDES(mutex_);
  // The generation of that number, or with that id; 0 and zero: the newest. Null: there is none.
  std::shared_ptr<lease> find(const std::string &name, std::uint64_t generation, pid_t reader,
                              const image::sha256 &id = {}) STILLMAP_EXCLUDES(mutex_);
  // Null: the name is published, or somebody has the claim.
  std::shared_ptr<claim> try_claim(const std::string &name) STILLMAP_EXCLUDES(mutex_);
  // The number of publications and of claims that were given up, so far.
  std::uint64_t changes() const STILLMAP_EXCLUDES(mutex_);
  // Waits until that number is another one, or for so long.
  void wait(std::uint64_t seen, std::chrono::milliseconds time) STILLMAP_EXCLUDES(mutex_);
  // The generation that is given to no further reader; 0: there was none.
  std::uint64_t withdraw(const std::string &name) STILLMAP_EXCLUDES(mutex_);
  std::vector<held_publication> list() const STILLMAP_EXCLUDES(mutex_);
  // Descriptors of all generations, of what is being published, and of leases.
  std::size_t open_fds() const STILLMAP_EXCLUDES(mutex_);

 private:
  struct known_name {
    std::shared_ptr<const held_memory> newest;
    bool claimed = false;
    std::map<std::uint64_t, std::weak_ptr<const held_memory>> all;  // those that still exist
  };
  using name_map = std::map<std::string, known_name>;
  std::size_t open_fds_locked() const STILLMAP_REQUIRES(mutex_);
  // Forgets generations that no longer exist, and the name if nothing is left of it.
  void tidy_locked(name_map::iterator name) STILLMAP_REQUIRES(mutex_);

  mutable mutex mutex_;
  condition_variable changed_;
  std::uint64_t changes_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_generation_ STILLMAP_GUARDED_BY(mutex_) = 0;  // of all names
  name_map names_ STILLMAP_GUARDED_BY(mutex_);
  std::set<const lease *> leases_ STILLMAP_GUARDED_BY(mutex_);
  std::size_t waiting_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::size_t expected_fds_ STILLMAP_GUARDED_BY(mutex_) = 0;
};

}  // namespace stillmap::publication
