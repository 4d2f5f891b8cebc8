// Runs every public operation with each of its driver calls failing once: the operation must return the
// error, leave everything unchanged, succeed when repeated, and leak nothing.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "stillmap/checkpoint/process/process_checkpoint.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/device_vector.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/physical_memory.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {

// What an operation works on: its setting fills in what it needs, and everything that is there is
// observed.
struct bench {
  struct tracked {
    std::optional<growable_buffer> buffer;
    device_address first_address;
    std::vector<virtual_range> known;  // offsets whose bytes must not change unnoticed
  };

  explicit bench(driver &of) : drv(&of) {}
  ~bench();

  driver *drv;
  std::optional<device> dev;
  std::optional<stream> s, held;
  fence idle;
  std::optional<reservation> blocker, space;
  std::shared_ptr<page_pool> pool;
  std::optional<physical_memory> memory;
  exported_fd fd;
  std::vector<page_ptr> pages;
  std::optional<mapping> at_hand;
  tracked a, b, c;
  std::optional<device_vector<std::uint32_t>> v;
  std::unique_ptr<checkpoint::suspender> sleeper;
  std::unique_ptr<process::process_checkpoint> fit;
  bool copying = false;
  std::string note;  // what the operation returned, where that is to be observed

  std::size_t page() const { return dev->capabilities().page_bytes; }
  void make_stream() { s = std::move(*stream::create(*dev)); }
  // `idle` becomes a fence that does not pass until the bench is dropped or let_pass().
  void hold_fence();
  void let_pass();
  void make(tracked &t, std::size_t pages_reserved, std::size_t pages_filled,
            std::vector<std::shared_ptr<page_pool>> pools = {});
  void fill(tracked &t, std::size_t offset, std::size_t bytes);
  void make_vector(std::size_t elements, std::size_t staging_bytes = 4096);
  void leave_free(std::size_t pages);
  std::string observe();
  // Destroys every object of the library but the device, where it is in use by nothing else.
  void let_go();
};

struct operation {
  std::string name;
  std::function<void(bench &)> set;
  std::function<status(bench &)> run;
  // Driver functions whose failure the operation may survive, and why that is right.
  std::set<std::string> may_survive;
  // Driver functions whose failure it can tell nobody but the sink.
  std::set<std::string> may_tell = {};
  bool vmm = true;            // needs pages
  bool own_device = false;    // opens its device itself
  bool compare_after = true;  // false: what it ends in may depend on the failure
  std::string calls = {};  // the public function; empty: "growable_buffer resize, cold" says which
};

// Whether an error of the operation names the public function that it calls, or a call of the driver's.
::testing::AssertionResult names_what_failed(const operation &o, const error &e);

inline void PrintTo(const operation &o, std::ostream *out) {
  *out << o.name;
}

std::vector<operation> operations();
void add_device_operations(std::vector<operation> &all);
void add_pool_operations(std::vector<operation> &all);
void add_space_operations(std::vector<operation> &all);
void add_buffer_operations(std::vector<operation> &all);
void add_sharing_operations(std::vector<operation> &all);
void add_copying_operations(std::vector<operation> &all);
void add_vector_operations(std::vector<operation> &all);
void add_suspend_operations(std::vector<operation> &all);
void add_process_operations(std::vector<operation> &all);

}  // namespace stillmap::testing
