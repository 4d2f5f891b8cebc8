// One wait for memory of others: asks them, kind by kind, until it is granted or its time is over. Internal.
// docs/sharing.md#a-wait
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/allocators/admission/quota_seat.h"

namespace stillmap {

// Of a device: its bytes, and those in use by anybody.
struct device_use {
  std::uint64_t total = 0, used = 0;
};

// Threads: externally synchronised; one wait of a participant at a time.
class room_request {
 public:
  // How long one that is asked may take to answer until others are asked, too.
  static constexpr std::chrono::milliseconds answer_time{100};
  // After all have been asked in vain, until they are asked again.
  static constexpr std::chrono::milliseconds ask_again{20};

  room_request(quota_ledger &l, quota_seat &seat, std::uint64_t bytes,
               std::chrono::steady_clock::time_point until);

  // Before the device is measured: what participants hold then is not used by others, though it may be released before
  // the look.
  status prepare_measure();
  // Looks once: granted, still to wait, or an error. It may run out of host memory. `use`: the device's, if it
  // was measured after prepare_measure().
  enum class progress : std::uint8_t { granted, waits };
  result<progress> look(std::optional<device_use> use);
  // Rings at those that the latest look has asked.
  void ring();
  // Whether others asked this participant, at the latest look.
  bool is_asked_itself() const { return is_asked_itself_; }
  // Takes the wait back, where an error prevents that it ends.
  void withdraw() noexcept;

  std::chrono::nanoseconds waited() const;
  // Grants to later requests of higher priority, once the wait has ended.
  std::uint64_t overtaken() const { return overtaken_; }

 private:
  using clock = std::chrono::steady_clock;
  struct asked {
    std::size_t slot = 0;
    std::uint32_t process = 0;
    std::uint64_t number = 0, bytes = 0;
    reclaim_kind kind{};
    clock::time_point at{};
    bool answered = false;
    bool in_use = false;  // what it could give, so far
  };

  result<progress> look_at(quota_table &t) STILLMAP_REQUIRES(ledger_held);
  status begin(quota_table &t);
  status end(quota_table &t, quota_action how);
  status note_use(quota_table &t, device_use use);
  status ask(quota_table &t, std::uint64_t missing);
  std::uint64_t read_answers(const quota_table &t);
  status ask_one(quota_table &t, const quota_rules::target &whom, std::uint64_t bytes);
  bool is_asked(std::size_t slot, const quota_table &t) const;
  error busy(const quota_table &t, const quota_rules::decision &d) const;

  quota_ledger &ledger_;
  quota_seat &seat_;
  const std::uint64_t bytes_;
  const clock::time_point began_, until_;
  std::uint64_t held_before_ = 0;  // bytes, before the latest measurement
  std::uint64_t ticket_ = 0;       // 0: the wait has not begun
  reclaim_kind kind_ = reclaim_kind::cached;
  std::vector<asked> asked_;           // in this round, of all kinds so far
  std::vector<std::uint32_t> silent_;  // processes that did not answer in time, ever
  clock::time_point round_over_{};     // when all had been asked
  std::vector<std::size_t> ring_;      // slots
  bool is_asked_itself_ = false;
  std::uint64_t overtaken_ = 0;
};

}  // namespace stillmap
