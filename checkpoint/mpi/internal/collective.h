// Where ranks meet: each says how it went, and all learn the same. Internal.
#pragma once

#include <new>
#include <type_traits>
#include <vector>

#include "stillmap/checkpoint/mpi/set.h"

namespace stillmap::mpi {

using done = outcome<void>;

// A communicator of our own, so that nobody else's messages are mistaken for ours.
// Threads: one.
class meeting {
 public:
  // Collective. Errors: invalid_argument (no MPI_Init, no communicator between equals), MPI's.
  static outcome<meeting> create(MPI_Comm ranks);
  meeting(meeting &&o) noexcept;
  meeting &operator=(meeting &&) = delete;
  ~meeting();  // collective

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Collective: the lowest failure of all, or none. Errors: that; MPI's.
  done agree(const image::done &mine) const;

  // What each has to say, by rank. Collective.
  template <class T>
  outcome<std::vector<T>> gather(const T &mine) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(size_));
    const auto ok = gather_bytes(&mine, all.data(), sizeof(T));
    if (!ok) return tl::unexpected(ok.error());
    return all;
  }
  // What rank 0 has to say. Collective.
  template <class T>
  done tell(T &what) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return tell_bytes(&what, sizeof(T));
  }

 private:
  explicit meeting(MPI_Comm own) : own_(own) {}
  done gather_bytes(const void *mine, void *all, std::size_t bytes) const;
  done tell_bytes(void *what, std::size_t bytes, int from = 0) const;

  MPI_Comm own_;
  int rank_ = 0, size_ = 0;
};

// A step that is this rank's own. What it throws would keep it from where the others wait.
template <class Work>
auto attempt(const Work &work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    return image::fail(errc::out_of_memory, "mpi", "no memory on the host");
  } catch (...) {
    return image::fail(errc::invalid_argument, "mpi", "an exception, of a callback perhaps");
  }
}

template <class T>
image::done without_value(const image::outcome<T> &o) {
  if (!o) return tl::unexpected(o.error());
  return {};
}

}  // namespace stillmap::mpi
