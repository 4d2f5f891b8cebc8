// Small snapshots that would cost a reader much time or memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "bench/replay/import_trace.h"
#include "bench/replay/pickle_reader.h"
#include "bench/replay/trace_file.h"

namespace stillmap::replay {
namespace {

using namespace std::string_literals;

std::string cause_of(const auto &imported) {
  EXPECT_FALSE(imported);
  return imported ? "" : imported.error().detail().cause;
}

std::string name(const std::string &s) {
  return "\x8c"s + static_cast<char>(s.size()) + s;
}

std::string repeated(const std::string &ops, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += ops;
  return out;
}

// {"device_traces": what}
std::string snapshot_of(const std::string &what) {
  return "\x80\x04}"s + name("device_traces") + what + "s.";
}

// An allocation that is remembered under `number`, among `more` other keys.
std::string remembered_event(char number, std::size_t more) {
  return "}("s + name("action") + name("alloc") + name("addr") + "K\x01" + name("size") + "K\x02" +
         name("stream") + "K\x03" + repeated("K\x04N", more) + "uq" + number + "0";
}

TEST(HostilePickle, ASmallFileDoesNotBecomeAnyAmountOfText) {
  const std::string file =
      ::testing::TempDir() + "stillmap-bomb-" + std::to_string(::getpid()) + ".zst";
  const std::size_t bytes = std::size_t{80} << 20;
  ASSERT_TRUE(save_text(file, "\x80\x04X\0\0\0\x05"s + std::string(bytes, '\0') + "."));
  ASSERT_LT(std::filesystem::file_size(file), 64u << 10);
  const auto text = read_text(file);
  std::filesystem::remove(file);
  EXPECT_NE(cause_of(text).find("holds over 64 MiB of text, more than 1,000 times its size"),
            std::string::npos)
      << cause_of(text);
}

TEST(HostilePickle, ValuesAndOperationsAreLimited) {
  const std::string three = "\x80\x04NN0N."s;  // three values, six operations
  EXPECT_TRUE(pickle::read(three, {.max_values = 3, .max_operations = 6}));
  EXPECT_EQ(cause_of(pickle::read(three, {.max_values = 2})),
            "byte 5: over 2 values, the most that are read");
  EXPECT_EQ(cause_of(pickle::read(three, {.max_operations = 5})),
            "byte 6: over 5 operations, the most that are read");
}

// Numbers that collide in a hash table make each operation cost as much as all before it.
TEST(HostilePickle, NumbersOfWhatIsRememberedAreNotSparse) {
  EXPECT_EQ(cause_of(pickle::read("\x80\x04Nr\xff\xff\xff\xff."s)),
            "byte 3: it numbers what it remembers by 4294967295, more than it has bytes so far");
  EXPECT_TRUE(pickle::read("\x80\x04Nr\x07\0\0\0."s));
}

// An object costs a few bytes to be used again, and as much to be looked at as the first time.
TEST(HostilePickle, AnObjectThatIsUsedOftenIsNotReadAnyNumberOfTimes) {
  const std::string wide_event = remembered_event('\x01', 3000);
  EXPECT_EQ(cause_of(import_torch_snapshot(
                "s", snapshot_of(wide_event + "](](" + repeated("h\x01", 3000) + "ee"))),
            "s: it refers to the same objects again and again: 64 times what it contains");
  const std::string history =
      remembered_event('\x01', 0) + "](" + repeated("h\x01", 3000) + "eq\x02" + "0";
  EXPECT_EQ(cause_of(import_torch_snapshot(
                "s", snapshot_of(history + "](" + repeated("h\x02", 3000) + "e"))),
            "s: it refers to the same objects again and again: 64 times what it contains");
  EXPECT_TRUE(import_torch_snapshot("s", snapshot_of(history + "](h\x02" + "e")));
}

}  // namespace
}  // namespace stillmap::replay
