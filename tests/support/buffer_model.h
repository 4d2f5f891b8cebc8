// A naive model of growable buffers. It performs random operations on several buffers, pools and
// streams of one small device, and after each operation compares the state that the buffers, the
// ledger, the pools and the driver report with its own. Model and fuzz tests run it.
//
// For each committed slot of each buffer the model keeps the page that is mapped there, so that
// sharing and unsharing can be compared with the ledger, and the known bytes of the page, in cells of
// a thirty-second of a page that hold one value each. It orders streams only where the headers
// require it.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "stillmap/vmm/growable_buffer.h"
#include "tests/support/op_sequence.h"

namespace stillmap::testing {

class buffer_model {
 public:
  // A fresh machine, the sequence, and the end: everything closed, nothing left behind. The first
  // operation is `machine MIB SEED` (memory; seed of the schedule, 0: threads).
  // `plant`: after each operation of that name one byte the model knows is changed behind its back
  // (to show that the model sees it); empty: never.
  static std::optional<op_failure> run(const op_sequence &ops, const std::string &plant = "");

  // What all runs so far did, by operation: a model that does nothing agrees with everything.
  struct tally {
    std::uint64_t done = 0, refused = 0, failed = 0;
  };
  static const std::map<std::string, tally> &tallies() { return tallies_; }

  static op_sequence generate(std::uint64_t seed, std::size_t count);
  // Any bytes are a sequence.
  static op_sequence from_bytes(const unsigned char *data, std::size_t size);

 private:
  static constexpr std::size_t cells_per_page = 32;
  static constexpr std::size_t max_buffers = 5, stream_count = 3, max_pools = 2;

  struct broken {  // thrown by demand(), caught by run()
    std::string what;
  };
  using stream_set = std::set<std::size_t>;  // 1-based
  struct page_model {
    std::array<std::optional<unsigned char>, cells_per_page> cells{};
    stream_set users;  // streams with work on it, at any address, not known to be ordered
  };
  struct slot_model {
    std::shared_ptr<page_model> page = std::make_shared<page_model>();
    stream_set users;  // the same, at this address
    bool forked = false, aliased = false;
    // As far as the library can know: what is taken away may be mapped until a fence has passed.
    bool surely_aliased() const { return aliased && page.use_count() > 1; }
    bool perhaps_aliased() const { return aliased && page.use_count() == 1; }
  };
  struct buffer_state {
    std::optional<growable_buffer> real;
    std::map<std::size_t, slot_model> slots;  // the committed ones
    std::size_t size = 0, capacity = 0, reserved = 0;
    device_address address;
    std::uint64_t generation = 0, relocations = 0;
    std::vector<std::size_t> pools;  // 0: the device's own
    std::size_t page = 0;
    bool in_place = false;
  };
  struct pending_read {
    const unsigned char *at;
    std::vector<std::optional<unsigned char>> cells;
    std::size_t cell;
    std::string what;
  };
  struct wanted_fault {
    std::string call;
    std::uint64_t nth;
    int code;
  };

  buffer_model(std::size_t mib, std::uint64_t seed);
  ~buffer_model();
  static void demand(bool holds, const std::string &what);

  void perform(const op &o);
  bool perform_surroundings(const op &o);

  // buffer_model_ops.cpp
  void create(const op &o);
  void grow(const op &o);
  void commit(const op &o);
  void give_back(const op &o);
  void close(const op &o);
  void move(const op &o);
  void alias(const op &o);
  void fork(const op &o);
  void prepare(const op &o);
  void splice(const op &o);

  // buffer_model_access.cpp
  void write(const op &o);
  void copy(const op &o);
  void read(const op &o);
  void check_contents();
  void corrupt_a_byte();
  void launch_fill(device_address at, std::size_t bytes, unsigned char value, stream_ref s);
  void synchronize();
  void order(std::size_t stream, buffer_state &b, std::size_t slot);
  void used(std::size_t stream, buffer_state &b, std::size_t slot, bool writes);
  bool accessible(const buffer_state &b, std::size_t cell, std::size_t count, bool writes) const;
  std::optional<unsigned char> &cell(buffer_state &b, std::size_t index);
  unsigned char *staging(std::size_t bytes);

  // buffer_model_checks.cpp
  void check_books();
  void check_buffer(buffer_state &b) const;
  void check_ledger() const;
  std::size_t dropped_free() const;

  // One call of the library: with the fault that was asked for, judged by what it may say.
  // `fresh`: bytes of new memory it may need from the pools `from`; out_of_memory is an answer only
  // where there are fewer. `or_busy`: that is an answer too.
  bool call(const std::string &what, std::optional<errc> refused, std::size_t fresh,
            const std::vector<std::size_t> &from, const std::function<status()> &perform_it,
            bool or_busy = false);
  void arm();
  bool disarm();
  fence fence_over(const stream_set &streams);
  fence fence_for(const op &o, std::size_t mode_arg, const stream_set &streams);
  bool memory_is_short(std::size_t fresh, const std::vector<std::size_t> &from) const;
  void adopt(buffer_state &b, growable_buffer made);
  void fit_fallback(buffer_state &b);
  buffer_state *live(const op &o, std::size_t arg = 0);
  std::optional<stream_ref> stream_of(const op &o, std::size_t arg) const;
  void show(buffer_state &b, const std::vector<std::size_t> &fresh, std::size_t stream);
  std::vector<std::size_t> missing(const buffer_state &b, std::size_t first, std::size_t end) const;
  stream_set users_of(const buffer_state &b, std::size_t first, std::size_t end) const;
  std::optional<errc> check_pages(const buffer_state &b, std::size_t first, std::size_t n,
                                  bool no_forked, bool no_aliased) const;
  bool perhaps_aliased(const buffer_state &b, std::size_t first, std::size_t end) const;

  static inline std::map<std::string, tally> tallies_;
  std::optional<device> device_;
  std::vector<stream> streams_;  // streams_[i - 1] is stream i
  std::array<std::shared_ptr<page_pool>, max_pools + 1> pools_;
  std::array<buffer_state, max_buffers> buffers_;
  std::vector<std::weak_ptr<page_pool>> dropped_;
  std::vector<pending_read> reads_;
  std::optional<wanted_fault> fault_;
  std::uint64_t unreported_ = 0;
  bool may_report_ = false;
  unsigned char *pinned_ = nullptr;
  std::size_t pinned_used_ = 0;
  void *module_ = nullptr, *fill_ = nullptr;
};

}  // namespace stillmap::testing
