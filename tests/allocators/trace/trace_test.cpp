// The trace format: accepted input, errors with their lines, and output.
#include "stillmap/allocators/trace/trace.h"

#include <gtest/gtest.h>

namespace stillmap::testing {
namespace {

std::string with_header(const std::string &lines) {
  return "# stillmap-trace v1\n" + lines;
}

// "t:LINE: CAUSE" of a text that is refused.
std::string trouble(const std::string &text) {
  const auto read = read_trace(text);
  EXPECT_FALSE(read) << text;
  if (read) return "";
  const error_detail &d = read.error().detail();
  EXPECT_TRUE(read.error().is(errc::invalid_argument));
  EXPECT_EQ(d.where.substr(0, 5), "line ");
  return "t:" + d.where.substr(5) + ": " + d.cause;
}

TEST(Trace, AnErrorNamesFileLineAndReason) {
  const auto read = read_trace(with_header("f,1"));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().about("step.trace").message(),
            "step.trace: line 2: read_trace: the trace is malformed: " +
                make_error_code(errc::invalid_argument).message() + ": 'f,1': there is no block 1");
}

TEST(Trace, EveryLineThereIs) {
  const auto read = read_trace(
      with_header("# a comment\r\n\na,7,1024,0\r\na,3,512,2\nu,7,2\ns,0,2\ni\nf,7\na,7,1,1\nf,3"));
  ASSERT_TRUE(read) << read.error().message();
  using v = trace_verb;
  const std::vector<trace_event> expected = {
      {v::allocate, 0, 0, 0, 1024}, {v::allocate, 2, 0, 1, 512}, {v::use, 2, 0, 0, 0},
      {v::wait, 0, 2, 0, 0},        {v::iteration, 0, 0, 0, 0},  {v::free, 0, 0, 0, 0},
      {v::allocate, 1, 0, 2, 1},    {v::free, 0, 0, 1, 0}};
  EXPECT_EQ(read->events, expected);
  EXPECT_EQ(read->totals.blocks, 3u);
  EXPECT_EQ(read->totals.iterations, 1u);
  EXPECT_EQ(read->totals.peak_live_bytes, 1536u);
  EXPECT_EQ(read->totals.live_bytes, 1u);
  EXPECT_EQ(read->totals.live_blocks, 1u);
  EXPECT_EQ(read->totals.streams, 3u);
}

TEST(Trace, ATraceMayBeEmpty) {
  for (const char *text : {"# stillmap-trace v1", "# stillmap-trace v1\r\n"}) {
    const auto read = read_trace(text);
    ASSERT_TRUE(read);
    EXPECT_TRUE(read->events.empty());
    EXPECT_EQ(read->totals.streams, 0u);
  }
}

TEST(Trace, TheFirstLineSaysWhatItIs) {
  EXPECT_EQ(trouble(""), "t:1: the file is empty; a trace begins with '# stillmap-trace v1'");
  EXPECT_EQ(trouble("a,1,2,3\n"), "t:1: 'a,1,2,3': a trace begins with '# stillmap-trace v1'");
  EXPECT_EQ(trouble("# stillmap-trace v2\n"),
            "t:1: '# stillmap-trace v2': this version of the format is not known; v1 is");
  EXPECT_EQ(trouble("\n# stillmap-trace v1\n"),
            "t:1: '': a trace begins with '# stillmap-trace v1'");
  EXPECT_NE(trouble(std::string("\x1b[31m\0\xff", 7)).find("'?[31m?\?'"), std::string::npos);
  EXPECT_NE(trouble(std::string(100, 'x')).find(std::string(60, 'x') + "...'"), std::string::npos);
}

TEST(Trace, MalformedLinesAreRefusedByNumber) {
  EXPECT_EQ(trouble(with_header("i\nx,1\n")),
            "t:3: 'x,1': a line begins with a, f, u, s, i, o or #");
  const char *const a = "write it as a,<id>,<bytes>,<stream>";
  for (const char *line :
       {"a", "a,", "a,1", "a,1,2", "a,1,2,", "a,1,2,3,", "a,1,2,3 ", "a, 1,2,3", "a,-1,2,3",
        "a,+1,2,3", "a,1,0x2,3", "a,1,2.5,3", "ab,1,2,3", "a;1,2,3"}) {
    EXPECT_EQ(trouble(with_header(line)), "t:2: '" + std::string(line) + "': " + a);
  }
  EXPECT_NE(trouble(with_header("f")).find("f,<id>"), std::string::npos);
  EXPECT_NE(trouble(with_header("u,1")).find("u,<id>,<stream>"), std::string::npos);
  EXPECT_NE(trouble(with_header("s,1,")).find("s,<from>,<to>"), std::string::npos);
  EXPECT_NE(trouble(with_header("i,1")).find("write it as i"), std::string::npos);
  EXPECT_NE(trouble(with_header("f,18446744073709551616")).find("over 2^64"), std::string::npos);
}

TEST(Trace, BlocksAreUsedWhileTheyLive) {
  EXPECT_EQ(trouble(with_header("f,1")), "t:2: 'f,1': there is no block 1");
  EXPECT_EQ(trouble(with_header("u,1,0")), "t:2: 'u,1,0': there is no block 1");
  EXPECT_EQ(trouble(with_header("a,1,2,0\ni\nf,1\nf,1")),
            "t:5: 'f,1': block 1 was freed on line 4");
  EXPECT_EQ(trouble(with_header("a,1,2,0\nf,1\nu,1,0")),
            "t:4: 'u,1,0': block 1 was freed on line 3");
  EXPECT_EQ(trouble(with_header("a,1,2,0\na,1,2,0")),
            "t:3: 'a,1,2,0': block 1 is live: it was allocated on line 2");
}

TEST(Trace, NumbersHaveLimits) {
  EXPECT_NE(trouble(with_header("a,1,0,0")).find("at least 1 byte"), std::string::npos);
  EXPECT_TRUE(read_trace(with_header("a,1,281474976710656,0")));
  EXPECT_NE(trouble(with_header("a,1,281474976710657,0")).find("2^48"), std::string::npos);
  EXPECT_TRUE(read_trace(with_header("a,18446744073709551615,1,4095")));
  EXPECT_NE(trouble(with_header("a,1,1,4096")).find("limit of 4095"), std::string::npos);
  EXPECT_NE(trouble(with_header("s,0,4294967296")).find("limit of 4095"), std::string::npos);
  EXPECT_NE(trouble(with_header("s,2,2")).find("wait for itself"), std::string::npos);
}

TEST(Trace, WhatIsWrittenIsReadBack) {
  trace_writer out("two lines\nof comment");
  out.allocate(1, 100, 0);
  out.use(1, 3);
  out.wait(0, 3);
  out.iteration();
  out.free(1);
  out.allocate(18446744073709551615u, trace_max_bytes, 4095);
  const std::string text = out.take();
  EXPECT_EQ(text,
            "# stillmap-trace v1\n# two lines\n# of comment\na,1,100,0\nu,1,3\ns,0,3\ni\nf,1\n"
            "a,18446744073709551615,281474976710656,4095\n");
  EXPECT_EQ(out.text(), "");
  const auto read = read_trace(text);
  ASSERT_TRUE(read) << read.error().message();
  const auto again = read_trace(to_text(*read));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->events, read->events);
}

TEST(Trace, ARequestThatFailedIsNoBlock) {
  trace_writer out;
  out.allocate(1, 100, 0);
  out.fail(50, 2, {4096, 30, 3996, 2, 3000});
  out.fail(7, 0, {});
  const std::string text = out.take();
  EXPECT_EQ(text, with_header("a,1,100,0\no,50,2,4096,30,3996,2,3000\no,7,0,0,0,0,0,0\n"));
  const auto read = read_trace(text);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->totals.blocks, 1u);
  EXPECT_EQ(read->totals.peak_live_bytes, 100u);
  EXPECT_EQ(read->totals.streams, 3u);
  EXPECT_EQ(read->events[1], (trace_event{trace_verb::fail, 2, 0, 0, 50}));
  EXPECT_EQ(read->failures, (std::vector<trace_failure>{{4096, 30, 3996, 2, 3000}, {}}));
  const auto again = read_trace(to_text(*read));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->events, read->events);
  EXPECT_EQ(again->failures, read->failures);
  EXPECT_NE(trouble(with_header("o,1,0,0,0,0,0")).find("write it as o,<bytes>,<stream>,<held>"),
            std::string::npos);
  EXPECT_NE(trouble(with_header("o,0,0,0,0,0,0,0")).find("at least 1 byte"), std::string::npos);
  EXPECT_NE(trouble(with_header("o,1,4096,0,0,0,0,0")).find("limit of 4095"), std::string::npos);
  EXPECT_NE(trouble(with_header("o,1,0,281474976710657,0,0,0,0")).find("a device has at most"),
            std::string::npos);
}

}  // namespace
}  // namespace stillmap::testing
