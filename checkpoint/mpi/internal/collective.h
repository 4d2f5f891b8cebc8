// Collective operations by which all ranks agree on one result.
#pragma once

#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "stillmap/checkpoint/mpi/set.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::mpi {

// Runs a step of this rank. Exceptions become errors: an exception must not keep this rank from the
// next collective, where the others wait.
template <class Step>
auto attempt(const Step &step) noexcept -> decltype(step()) {
  return with_host_memory([&]() -> decltype(step()) {
    try {
      return step();
    } catch (const std::bad_alloc &) {
      throw;
    } catch (const std::length_error &) {
      throw;
    } catch (...) {
      return make_error(errc::invalid_argument, "an exception, possibly of a callback");
    }
  });
}

// Owns a duplicate of the communicator, so that messages of the application are not mixed up with
// ours. What its operations need is allocated by create(): a rank without host memory must not miss
// one in which the others wait. Threads: one.
class collective {
 public:
  // Collective.
  // Errors: invalid_argument (MPI is not initialised; no communicator, or an intercommunicator),
  //         out_of_memory (the host of a rank), MPI's.
  static result<collective> create(MPI_Comm ranks);
  collective(collective &&o) noexcept;
  collective &operator=(collective &&) = delete;
  ~collective();  // collective

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Collective: succeeds if all ranks succeeded; otherwise the error of the lowest rank that
  // failed. Errors: that one; MPI's.
  status all_agree(const status &mine) const;

  // Collective: runs step(), whose result is a status or a result, and succeeds with it if it
  // succeeded on all ranks. Errors: as all_agree().
  template <class Step>
  auto agree(const Step &step) const -> decltype(step()) {
    auto mine = attempt(step);
    STILLMAP_RETURN_IF_ERROR(all_agree(mine ? status() : tl::unexpected(mine.error())));
    return mine;
  }

  // Collective: the values of all ranks, by rank. Requires: `all` has one element for each.
  template <class T>
  status gather(const T &mine, std::span<T> all) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return gather_bytes(&mine, all.data(), sizeof(T));
  }
  // Collective: sets `value` to that of rank 0.
  template <class T>
  status broadcast(T &value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return broadcast_bytes(&value, sizeof(T));
  }

 private:
  // The outcome of one rank, as other machines understand it.
  struct report {
    std::int32_t failed = 0;
    std::int32_t code_category = 0;
    std::int32_t code_value = 0;
    std::uint32_t text_bytes = 0;
    static report of(const status &mine, std::size_t text_bytes);
    std::error_code code() const;
  };
  explicit collective(MPI_Comm own) : own_(own) {}
  status gather_bytes(const void *mine, void *all, std::size_t bytes) const;
  status broadcast_bytes(void *bytes_of_root, std::size_t bytes, int root = 0) const;

  MPI_Comm own_;
  int rank_ = 0, size_ = 0;
  mutable std::vector<report> reports_;  // of all ranks
  mutable std::vector<char> text_;       // of the error of one of them
};

}  // namespace stillmap::mpi
