// Trace files, compressed and plain.
#include "bench/replay/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace stillmap::replay {
namespace {

namespace fs = std::filesystem;

class TraceFile : public ::testing::Test {
 protected:
  TraceFile() { fs::create_directories(folder_); }
  ~TraceFile() override { fs::remove_all(folder_); }
  std::string path(const std::string &name) const { return (folder_ / name).string(); }
  std::string put(const std::string &name, const std::string &bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string get(const std::string &name) const {
    std::ifstream in(path(name), std::ios::binary);
    std::ostringstream all;
    all << in.rdbuf();
    return all.str();
  }
  static std::string trouble(const std::string &file) {
    const auto read = load_trace(file);
    EXPECT_FALSE(read) << file;
    if (read) return "";
    return read.error().message();
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / ("stillmap_tf_" + std::to_string(::getpid()));
};

// Over 1 MiB, so that it is read in several pieces.
std::string long_trace() {
  trace_writer out;
  for (std::uint64_t i = 0; i < 60000; ++i) {
    out.allocate(i, i * i % 100000 + 1, 0);
    out.free(i);
  }
  return out.take();
}

TEST_F(TraceFile, PlainAndCompressedReadTheSame) {
  const std::string text = long_trace();
  ASSERT_TRUE(save_text(path("t.trace"), text));
  ASSERT_TRUE(save_text(path("t.trace.zst"), text));
  EXPECT_EQ(get("t.trace"), text);
  EXPECT_LT(get("t.trace.zst").size(), text.size() / 2);
  EXPECT_EQ(*read_text(path("t.trace.zst")), text);
  put("renamed", get("t.trace.zst"));  // known by its content
  for (const char *name : {"t.trace", "t.trace.zst", "renamed"}) {
    const auto read = load_trace(path(name));
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->totals.blocks, 60000u);
  }
}

TEST_F(TraceFile, BadLinesAreNamedByFileAndLine) {
  const std::string file = put("bad.trace", "# stillmap-trace v1\na,1,2,0\nf,2\n");
  EXPECT_EQ(trouble(file).find(file + ": line 3: "), 0u) << trouble(file);
  EXPECT_NE(trouble(file).find(": 'f,2': there is no block 2"), std::string::npos) << trouble(file);
  const std::string empty = trouble(put("empty", ""));
  EXPECT_NE(empty.find("empty: line 1: "), std::string::npos) << empty;
  EXPECT_NE(empty.find(": the file is empty"), std::string::npos) << empty;
  EXPECT_NE(trouble(path("absent")).find("cannot read"), std::string::npos);
}

TEST_F(TraceFile, LogsOfOtherAllocatorsAreImported) {
  const std::string columns = "Thread,Time,Action,Pointer,Size,Stream\n";
  const auto read = load_trace(put("rmm.csv", columns + "1,t,allocate,0x1,7,0\n"));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(to_text(*read), "# stillmap-trace v1\na,0,7,0\n");
  const std::string bad = put("bad.csv", columns + "1,t,free,0x1,7,0\n");
  EXPECT_NE(trouble(bad).find(bad + ":2: 0x1 is not allocated"), std::string::npos);
}

TEST_F(TraceFile, ATraceIsOfOneDeviceOfASnapshot) {
  // {"device_traces": [[event], [event]]}, each event an allocation of 7 bytes.
  const auto text = [](const std::string &s) {
    return "\x8c" + std::string(1, static_cast<char>(s.size())) + s;
  };
  const std::string event = "}(" + text("action") + text("alloc") + text("addr") + "K\x01" +
                            text("size") + "K\x07" + text("stream") + "K\x01u";
  const std::string file = put(
      "two.pickle", "\x80\x04}" + text("device_traces") + "](](" + event + "e](" + event + "ees.");
  const auto all = load_traces(file);
  ASSERT_TRUE(all) << all.error().message();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ(all->at(0).device, 0u);
  EXPECT_EQ(all->at(1).device, 1u);
  EXPECT_EQ(all->at(1).recorded.totals.live_bytes, 7u);
  // One of them: the one that was asked for, or the one with the most memory.
  const std::string larger = "}(" + text("action") + text("alloc") + text("addr") + "K\x01" +
                             text("size") + "K\x09" + text("stream") + "K\x01u";
  const std::string other = put("other.pickle", "\x80\x04}" + text("device_traces") + "](](" +
                                                    event + "e](" + larger + "ees.");
  EXPECT_EQ(load_trace(other)->totals.live_bytes, 9u);
  EXPECT_EQ(pick_trace(other, *load_traces(other))->device, 1u);
  EXPECT_EQ(pick_trace(other, *load_traces(other), 0)->recorded.totals.live_bytes, 7u);
  const auto third = pick_trace(other, *load_traces(other), 2);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().detail().cause, other + " has no history of device 2; it has of 0, 1");
}

TEST_F(TraceFile, DamagedArchivesAreRefused) {
  ASSERT_TRUE(save_text(path("t.zst"), long_trace()));
  const std::string whole = get("t.zst");
  EXPECT_NE(trouble(put("cut", whole.substr(0, whole.size() / 2))).find("truncated"),
            std::string::npos);
  EXPECT_NE(trouble(put("head", whole.substr(0, 4))).find("truncated"), std::string::npos);
  EXPECT_NE(trouble(put("tail", whole + "more")).find("zstd says"), std::string::npos);
  std::string bent = whole;
  bent[bent.size() / 2] = static_cast<char>(bent[bent.size() / 2] ^ 0x55);
  EXPECT_FALSE(load_trace(put("bent", bent)));
}

TEST_F(TraceFile, WhatCannotBeWrittenSaysSo) {
  const auto saved = save_text(path("no/such/folder/t.trace"), "x");
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().message().find("cannot write the file"), std::string::npos);
  EXPECT_EQ(saved.error().code, std::errc::no_such_file_or_directory);
  EXPECT_EQ(saved.error().detail().subject, path("no/such/folder/t.trace"));
  const auto read = read_text(folder_.string());
  ASSERT_FALSE(read) << "a folder is no file";
  EXPECT_EQ(read.error().code, std::errc::is_a_directory);
  EXPECT_EQ(read.error().detail().subject, folder_.string());
}

}  // namespace
}  // namespace stillmap::replay
