// A program with the preload that runs while a test talks to it: by its pipes, and as its operator.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "tests/preload/preload_test.h"

namespace stillmap::testing {

class operated_program {
 public:
  // The client `operated`, ready for commands.
  operated_program(std::vector<std::string> environment, int devices);
  // Kills it if it runs still.
  ~operated_program();
  operated_program(const operated_program &) = delete;

  pid_t pid() const { return pid_; }
  std::string address(int ordinal = 0) const;
  control::client as_operator(int ordinal = 0) const { return control::client(address(ordinal)); }

  // The line that answers a command; "": the program has ended.
  std::string ask(const std::string &command) const;
  void tell(const std::string &command) const;
  std::uint64_t number(const std::string &command) const;
  // Whether rounds are done: waits for one, at most ten seconds.
  bool works() const;

  std::uint64_t constant_address() const { return constant_; }
  std::size_t constant_bytes() const { return bytes_; }

  // Closes its stdin, and waits. What it exited with, or 128 + the signal that ended it.
  int end();
  int wait();

 private:
  std::string answer() const;

  pid_t pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  std::uint64_t constant_ = 0;
  std::size_t bytes_ = 0;
  mutable std::map<int, std::string> addresses_;
};

// All memory of such a program.
inline const control::suspend_request whole_program{.tag = "program"};

// Bytes of all tags, as its status says.
struct tag_bytes {
  std::uint64_t mapped = 0, suspended = 0;
};
tag_bytes bytes_in(const operated_program &p);

// Busy at the end of what it waits for, and it goes on.
void expect_refused(const operated_program &p);
// And resumed.
void expect_suspended(const operated_program &p);

class operated_test : public preload_test {
 protected:
  // Skips where the driver serves the memory.
  void SetUp() override;
  std::unique_ptr<operated_program> start(int devices = 1,
                                          std::vector<std::string> variables = {}) const;
  // One that waits for 100 ms, instead of 20 s.
  std::unique_ptr<operated_program> start_impatient() const;
  static bool has_several_devices();
};

}  // namespace stillmap::testing
