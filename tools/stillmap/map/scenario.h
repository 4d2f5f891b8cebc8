// Performs the operations of a script on buffers of one device.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "stillmap/vmm/growable_buffer.h"
#include "tools/stillmap/map/ops_script.h"

namespace stillmap::tool {

class scenario {
 public:
  // Each buffer reserves `reserve` bytes of addresses.
  static outcome<scenario> create(const device &d, std::uint64_t reserve);
  scenario(scenario &&) = default;
  ~scenario();  // ends hold() first, since buffers wait for device work

  // Errors: exit_usage (an unknown name in the script), the library's; both with the position and the
  // operation. Earlier operations are not undone.
  outcome<void> perform(const operation &op);

  // The name of the buffer at an address in the script; empty: none.
  std::string name_at(device_address at) const;

 private:
  scenario(device d, std::uint64_t reserve, stream s)
      : device_(std::move(d)), reserve_(reserve), stream_(std::move(s)) {}
  outcome<growable_buffer *> find(const operation &op, const std::string &name);
  outcome<growable_buffer *> find_or_make(const operation &op, const std::string &name,
                                          std::uint64_t reserve);
  outcome<void> add(const operation &op, const std::string &name, result<growable_buffer> made);
  outcome<void> hold(const operation &op);
  status release_work();
  status release(growable_buffer &b, const operation &op);

  device device_;
  std::uint64_t reserve_;
  stream stream_;
  std::optional<fence> busy_;                // after hold(): released pages wait for this fence
  std::unique_ptr<std::atomic<bool>> gate_;  // what the host function of hold() reads
  std::map<std::string, growable_buffer> buffers_;
};

}  // namespace stillmap::tool
