// Runs the fuzz entry without a fuzzer: a fixed corpus, then random inputs for a limited time.
// README.md describes the use with libFuzzer.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <vector>

#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/op_sequence.h"
#include "tests/system/fuzz/entry.h"

namespace stillmap::testing {
namespace {

class fuzz_test : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure() && !on_hostcuda()) {
      GTEST_SKIP() << "the inputs reset the machine, which needs hostcuda";
    }
  }

  static void expect_fine(fuzz_target target, const std::string &input) {
    std::string bytes(1, static_cast<char>(target));
    bytes += input;
    EXPECT_EQ(fuzz_one(reinterpret_cast<const std::uint8_t *>(bytes.data()), bytes.size()), "")
        << "input: " << input;
  }
};

TEST_F(fuzz_test, Nothing) {
  EXPECT_EQ(fuzz_one(nullptr, 0), "");
  for (std::uint8_t target = 0; target < static_cast<std::uint8_t>(fuzz_target::count); ++target) {
    EXPECT_EQ(fuzz_one(&target, 1), "");
  }
}

TEST_F(fuzz_test, Configurations) {
  const char *const corpus[] = {
      "",
      "profile=h200",
      "profile=multi:8,memory=80G,unbacked,lenient",
      "profile=multi:0",
      "profile=multi:99999999999999999999",
      "profile=multi:2x",
      "profile=",
      "profile",
      "memory=",
      "memory=0",
      "memory=1K",
      "memory=99999999999999999999T",
      "memory=-1",
      "memory=64M,memory=32M",
      "memory=64MM",
      "schedule=seeded:",
      "schedule=seeded:18446744073709551615",
      "schedule=seeded:140737488355328",
      "schedule=jitter:7,jitter_us=10000001",
      "schedule=jitter:7,jitter_us=0",
      "schedule=threads:1",
      "mappings=0",
      "mappings=1",
      "costs=/nonexistent/costs",
      "costs=",
      ",,,",
      "=,=",
      "backed=1",
      "backed,unbacked,strict,lenient",
      "profile=h200,profile=a100",
      " profile=h200",
  };
  for (const char *text : corpus) expect_fine(fuzz_target::config, text);
}

TEST_F(fuzz_test, DriverNames) {
  for (const char *text :
       {"", "host", "cuda", "libcuda.so.1", "../../../dev/null", "a b\n", "\xff\xfe", "%s%s%n"}) {
    expect_fine(fuzz_target::driver_name, text);
  }
  expect_fine(fuzz_target::driver_name, std::string(100000, 'x'));
  for (const char *name : {"/dev/null", "/", "/proc/self/mem"}) {
    const auto loaded = driver::load(name);
    ASSERT_FALSE(loaded.has_value()) << name;
    EXPECT_TRUE(loaded.error().is(errc::not_supported)) << loaded.error().message();
  }
}

TEST_F(fuzz_test, SequenceTexts) {
  for (const char *text :
       {"", ";", ";;;", "resize", "resize 0 1; ", "# only a comment", "a 00001", "a\t1\r\n"}) {
    expect_fine(fuzz_target::sequence_text, text);
  }
}

TEST_F(fuzz_test, Traces) {
  const std::string header = "# stillmap-trace v1\n";
  for (const char *text : {"", "\n\n", "a,1,2,3\nf,1\na,1,1,0", "a,0,0,0", "f,18446744073709551615",
                           "i\r\ni\r", "s,0,1\ns,4095,0\nu,1,1",
                           "a,1,281474976710656,0\na,2,281474976710656,0", "#\n#a", "a,1,1,"}) {
    expect_fine(fuzz_target::trace_text, text);
    expect_fine(fuzz_target::trace_text, header + text);
  }
  std::mt19937_64 dice(seed_of_run(3));
  const char *const lines[] = {"a,", "f,", "u,", "s,", "i", ",", "\n", "\n", "\r\n", "#", "-", " "};
  for (int i = 0; i < 2000; ++i) {
    std::string text = header;
    for (std::uint64_t n = dice() % 60; n > 0; --n) {
      switch (dice() % 4) {
        case 0:
          text += lines[dice() % std::size(lines)];
          break;
        case 1:
          text += std::to_string(dice() % 4);
          break;
        case 2:
          text += "a," + std::to_string(dice() % 6) + "," + std::to_string(dice() % 3) + ",0\n";
          break;
        default:
          text += "f," + std::to_string(dice() % 6) + "\n";
      }
    }
    if (dice() % 3 == 0 && !text.empty()) text[dice() % text.size()] = static_cast<char>(dice());
    expect_fine(fuzz_target::trace_text, text);
  }
}

TEST_F(fuzz_test, RandomInputs) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_of_run(3));
  std::mt19937_64 dice(seed_of_run(1));
  const char *const words[] = {"profile=",  "h200",    "multi:",  "memory=",  "64M",
                               "schedule=", "seeded:", "jitter:", "unbacked", "mappings=",
                               ",",         "=",       "1",       "T",        "costs=x"};
  std::size_t inputs = 0;
  do {
    std::vector<std::uint8_t> input(1 + dice() % 400);
    for (auto &b : input) b = static_cast<std::uint8_t>(dice());
    if (static_cast<fuzz_target>(input[0] % static_cast<std::uint8_t>(fuzz_target::count)) ==
            fuzz_target::config &&
        dice() % 4 != 0) {
      input.resize(1);
      for (std::uint64_t n = dice() % 10; n > 0; --n) {
        for (const char *c = words[dice() % std::size(words)]; *c != '\0'; ++c) {
          input.push_back(static_cast<std::uint8_t>(*c));
        }
      }
    }
    ASSERT_EQ(fuzz_one(input.data(), input.size()), "") << "input " << inputs;
    ++inputs;
  } while (std::chrono::steady_clock::now() < until);
  std::printf("fuzz: %zu random inputs\n", inputs);
}

}  // namespace
}  // namespace stillmap::testing
