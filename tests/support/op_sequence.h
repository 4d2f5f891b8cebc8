// Sequences of operations as text, so that a finding of a random test pastes back as a regression test:
// "machine 64 7; create 0 0 8; resize 0 4194304 1". Arguments are whole numbers, which the model brings
// into range. Any subsequence is a valid sequence, which makes shrinking possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stillmap::testing {

struct op {
  std::string name;
  std::vector<std::uint64_t> args;

  // Absent arguments are 0.
  std::uint64_t arg(std::size_t i) const { return i < args.size() ? args[i] : 0; }
  bool operator==(const op &) const = default;
};
using op_sequence = std::vector<op>;

// What went wrong, and after which operation (the number of operations: at the end).
struct op_failure {
  std::size_t at = 0;
  std::string what;
};
using op_runner = std::function<std::optional<op_failure>(const op_sequence &)>;

std::string to_text(const op_sequence &ops);
// Operations are separated by ';' or new lines; '#' starts a comment. nullopt: not such a text.
std::optional<op_sequence> parse_ops(std::string_view text);

// Drops operations for as long as what is left still fails, at most `tries` runs. Returns the
// shortest failing sequence found.
op_sequence shrink(op_sequence ops, const op_runner &run, std::size_t tries = 400);

// Runs, and on failure shrinks: the report to print, with the line to paste, or nothing.
std::string report_failure(const op_sequence &ops, const op_runner &run);

// A command as hostcuda takes it: HOSTCUDA of the environment with `more` on top.
std::string machine_config(const std::string &more);

// STILLMAP_SEED or `otherwise`; STILLMAP_MODEL_SECONDS or `otherwise`, a third of it on a profile that
// repeats another one (effort.h).
std::uint64_t seed_of_run(std::uint64_t otherwise);
double seconds_of_run(double otherwise);
// STILLMAP_MODEL_REPLAY: a sequence, or the path of a file with one. nullopt: not asked for.
// Throws std::runtime_error where it is asked for and is neither.
std::optional<op_sequence> replay_of_run();

}  // namespace stillmap::testing
