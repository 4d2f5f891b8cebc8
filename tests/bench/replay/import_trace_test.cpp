// Importing PyTorch snapshots and RMM logs as traces, and pickles that try to execute code.
#include "bench/replay/import_trace.h"

#include <gtest/gtest.h>

#include <random>

#include "bench/replay/pickle_reader.h"
#include "stillmap/allocators/trace/trace.h"

namespace stillmap::replay {
namespace {

using namespace std::string_literals;

// Pickle's operations, as Python's protocol 4 writes them.
std::string text(const std::string &s) {
  return "\x8c"s + static_cast<char>(s.size()) + s + "\x94";
}
std::string integer(std::uint64_t n) {
  std::string bytes = "\x8a\x08"s;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i));
  return bytes;
}
std::string list(const std::vector<std::string> &items) {
  std::string all = "]\x94("s;
  for (const std::string &item : items) all += item;
  return all + "e";
}
using members = std::vector<std::pair<std::string, std::string>>;
std::string dict(const members &of) {
  std::string all = "}\x94("s;
  for (const auto &[key, value] : of) all += text(key) + value;
  return all + "u";
}
std::string pickled(const std::string &value) {
  return "\x80\x04"s + value + ".";
}
std::string event(const std::string &action, std::uint64_t at, std::uint64_t size,
                  std::uint64_t stream) {
  return dict({{"action", text(action)},
               {"addr", integer(at)},
               {"size", integer(size)},
               {"stream", integer(stream)},
               {"frames", list({})}});
}
std::string snapshot(const std::vector<std::string> &events,
                     const std::string &segments = list({})) {
  return pickled(dict({{"segments", segments}, {"device_traces", list({list({}), list(events)})}}));
}

std::string body(const result<std::string> &imported) {
  EXPECT_TRUE(imported) << (imported ? "" : imported.error().message());
  if (!imported) return "";
  const auto read = read_trace(*imported);
  EXPECT_TRUE(read) << (read ? "" : read.error().message());
  const std::size_t first = imported->find('\n'), second = imported->find('\n', first + 1);
  return imported->substr(second + 1);
}
std::string body(const result<std::vector<trace_text>> &imported) {
  EXPECT_TRUE(imported) << (imported ? "" : imported.error().message());
  if (!imported) return "";
  EXPECT_EQ(imported->size(), 1u);
  return body(result<std::string>(imported->front().text));
}
template <class Imported>
std::string trouble(const result<Imported> &imported) {
  EXPECT_FALSE(imported);
  return imported ? "" : imported.error().detail().cause;
}

TEST(ImportTorch, AHistoryBecomesATrace) {
  const auto imported = import_torch_snapshot(
      "s", snapshot({event("alloc", 0x7f0000000000, 512, 0), event("segment_alloc", 1, 2, 3),
                     event("alloc", 0x7f0000001000, 100, 77),
                     event("free_requested", 0x7f0000000000, 512, 0),
                     event("free_completed", 0x7f0000000000, 512, 0),
                     event("alloc", 0x7f0000000000, 300, 77)}));
  EXPECT_EQ(body(imported), "a,0,512,0\na,1,100,1\nf,0\na,2,300,1\n");
}

// A history that is full has lost its oldest events, the free of a block among them.
TEST(ImportTorch, AnAddressThatIsAllocatedAgainWasFreed) {
  const auto imported = import_torch_snapshot(
      "s", snapshot({event("alloc", 0x1000, 512, 0), event("alloc", 0x1000, 300, 0),
                     event("alloc", 0x2000, 0, 0), event("free_requested", 0x1000, 300, 0)}));
  EXPECT_EQ(body(imported), "a,0,512,0\nf,0\na,1,300,0\nf,1\n");
}

TEST(ImportTorch, ABlockHasAtMostTheBytesOfTheFormat) {
  EXPECT_EQ(body(import_torch_snapshot("s", snapshot({event("alloc", 1, trace_max_bytes, 0)}))),
            "a,0,281474976710656,0\n");
  EXPECT_EQ(
      trouble(import_torch_snapshot(
          "s", snapshot({event("alloc", 1, 2, 0), event("alloc", 3, trace_max_bytes + 1, 0)}))),
      "s: event 1: a size of 281474976710657");
}

// Python's pickler appends a single element, and several at once, by operations of their own.
TEST(ImportTorch, AListMayGrowByOneElement) {
  const std::string grown = "]\x94"s + event("alloc", 0x1000, 512, 0) + "a";
  const auto imported = import_torch_snapshot(
      "s", pickled(dict({{"segments", list({})}, {"device_traces", list({list({}), grown})}})));
  EXPECT_EQ(body(imported), "a,0,512,0\n");
}

TEST(ImportTorch, WhatWasThereBeforeIsAllocatedFirst) {
  const std::string segment =
      dict({{"device", integer(1)},
            {"address", integer(0x1000)},
            {"stream", integer(5)},
            {"blocks", list({dict({{"size", integer(512)},
                                   {"requested_size", integer(400)},
                                   {"state", text("active_allocated")}}),
                             dict({{"size", integer(512)}, {"state", text("inactive")}}),
                             dict({{"size", integer(1024)}, {"state", text("active_allocated")}}),
                             dict({{"size", integer(1)}, {"state", text("active_allocated")}}),
                             dict({{"size", integer(0)},
                                   {"requested_size", integer(7)},
                                   {"state", text("active_allocated")}})})}});
  const auto imported = import_torch_snapshot(
      "s", snapshot({event("alloc", 0x1400, 1024, 5), event("free_requested", 0x9000, 64, 5)},
                    list({segment})));
  EXPECT_EQ(body(imported), "a,0,400,0\na,1,1,0\na,2,64,0\na,3,1024,0\nf,2\n");
}

TEST(ImportTorch, EachDeviceWithAHistoryBecomesATrace) {
  const auto imported = import_torch_snapshot(
      "s", pickled(dict({{"segments", list({})},
                         {"device_traces", list({list({event("alloc", 0x1000, 512, 0)}), list({}),
                                                 list({event("alloc", 0x1000, 700, 9)})})}})));
  ASSERT_TRUE(imported) << imported.error().message();
  ASSERT_EQ(imported->size(), 2u);
  EXPECT_EQ(imported->at(0).device, 0u);
  EXPECT_EQ(body(result<std::string>(imported->at(0).text)), "a,0,512,0\n");
  EXPECT_EQ(imported->at(1).device, 2u);
  EXPECT_EQ(body(result<std::string>(imported->at(1).text)), "a,0,700,0\n");
}

std::string out_of_memory(std::uint64_t device_free, std::uint64_t size, std::uint64_t stream) {
  return dict({{"action", text("oom")},
               {"device_free", integer(device_free)},
               {"size", integer(size)},
               {"stream", integer(stream)}});
}
std::string block(std::uint64_t size, const std::string &state) {
  return dict({{"size", integer(size)}, {"state", text(state)}});
}
std::string segment(std::uint64_t at, std::uint64_t total, const std::vector<std::string> &blocks) {
  return dict({{"device", integer(1)},
               {"address", integer(at)},
               {"total_size", integer(total)},
               {"stream", integer(0)},
               {"blocks", list(blocks)}});
}

// Two segments with three free pieces, a block that waits to be freed among them.
TEST(ImportTorch, OutOfMemoryIsAFailureWithTheFiguresOfTheHeap) {
  const std::string segments = list(
      {segment(0x1000, 4096,
               {block(1024, "inactive"), block(1024, "active_allocated"), block(2048, "inactive")}),
       segment(0x9000, 2048, {block(512, "active_pending_free"), block(1536, "inactive")})});
  EXPECT_EQ(body(import_torch_snapshot(
                "s", snapshot({event("alloc", 0x1400, 1000, 0), event("alloc", 0x9000, 100, 0),
                               event("free_requested", 0x9000, 100, 0), out_of_memory(77, 3000, 5)},
                              segments))),
            "a,0,1000,0\na,1,100,0\nf,1\no,3000,1,6144,77,4608,3,2048\n");
}

// The program caught the error and went on: the snapshot's end is another heap, with another segment.
TEST(ImportTorch, TheHeapAtAFailureIsFoundByUndoingWhatFollowed) {
  const std::string segments =
      list({segment(0x1000, 4096, {block(4096, "inactive")}),
            segment(0x5000, 1024, {block(512, "active_allocated"), block(512, "inactive")})});
  EXPECT_EQ(
      body(import_torch_snapshot(
          "s",
          snapshot(
              {event("alloc", 0x1000, 600, 0), event("alloc", 0x1800, 512, 0),
               out_of_memory(50, 9000, 0), event("free_requested", 0x1000, 600, 0),
               event("free_completed", 0x1000, 600, 0), event("free_requested", 0x1800, 512, 0),
               event("free_completed", 0x1800, 512, 0), event("segment_free", 0x8000, 3072, 0),
               event("segment_unmap", 0xf000, 1024, 0), event("segment_alloc", 0x5000, 1024, 0),
               event("alloc", 0x5000, 512, 0)},
              segments))),
      "a,0,600,0\na,1,512,0\no,9000,0,8192,50,6656,4,3072\nf,0\nf,1\na,2,512,0\n");
}

// Events have the bytes that were requested, and PyTorch leaves up to 1 MiB more in a large block.
TEST(ImportTorch, TheRestOfALargeBlockIsNotFree) {
  constexpr std::uint64_t mib = 1 << 20, base = 1 << 30;
  const std::string segments = list({segment(base, 20 * mib, {block(20 * mib, "inactive")})});
  EXPECT_EQ(
      body(import_torch_snapshot(
          "s",
          snapshot({event("alloc", base, 2 * mib, 0), event("alloc", base + 3 * mib, 4 * mib, 0),
                    event("alloc", base + 7 * mib + 512, 512, 0), out_of_memory(50, 90 * mib, 0),
                    event("free_completed", base, 2 * mib, 0),
                    event("free_completed", base + 3 * mib, 4 * mib, 0),
                    event("free_completed", base + 7 * mib + 512, 512, 0)},
                   segments))),
      "a,0,2097152,0\na,1,4194304,0\na,2,512,0\no,94371840,0,20971520,50,13630464,1,13630464\n");
}

TEST(ImportTorch, OnlyTheLastFailuresAreDescribed) {
  std::vector<std::string> events;
  for (int i = 0; i < 70; ++i) events.push_back(out_of_memory(50, 9000, 0));
  std::string expected;
  for (int i = 0; i < 6; ++i) expected += "o,9000,0,0,0,0,0,0\n";
  for (int i = 0; i < 64; ++i) expected += "o,9000,0,4096,50,4096,1,4096\n";
  EXPECT_EQ(body(import_torch_snapshot(
                "s", snapshot(events, list({segment(0x1000, 4096, {block(4096, "inactive")})})))),
            expected);
}

// PyTorch's size_t(-1): the line of a frame that has none. Python's integers have no limit.
TEST(ImportTorch, AnIntegerThatNobodyUsesMayBeAnySize) {
  const std::string all_ones = "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"s;
  const auto with_line = [&](const std::string &line) {
    return dict({{"action", text("alloc")},
                 {"addr", integer(0x1000)},
                 {"size", integer(512)},
                 {"stream", integer(0)},
                 {"frames", list({dict({{"name", text("f")}, {"line", line}})})}});
  };
  for (const std::string &line : {all_ones, "\x8a\x20"s + std::string(32, '\x7f'),
                                  "L18446744073709551615L\n"s, "I99999999999999999999\n"s}) {
    EXPECT_EQ(body(import_torch_snapshot("s", snapshot({with_line(line)}))), "a,0,512,0\n");
  }
  // One that is needed is not.
  const std::string no_size = dict({{"action", text("alloc")},
                                    {"addr", integer(1)},
                                    {"size", all_ones},
                                    {"stream", integer(0)}});
  EXPECT_EQ(trouble(import_torch_snapshot("s", snapshot({no_size}))),
            "s: event 0: no addr, size and stream");
}

TEST(ImportTorch, WhatIsNoSnapshotIsRefused) {
  const auto import = [](const std::string &bytes) {
    return trouble(import_torch_snapshot("s", bytes));
  };
  EXPECT_NE(import(pickled(list({}))).find("s: it has no history"), std::string::npos);
  EXPECT_NE(import(snapshot({})).find("it has no history"), std::string::npos);
  EXPECT_NE(import(snapshot({text("x")})).find("s: event 0: it has no action"), std::string::npos);
  EXPECT_NE(import(snapshot({dict({{"action", text("alloc")}})})).find("s: event 0: no addr"),
            std::string::npos);
  EXPECT_NE(import(snapshot({event("alloc", 1, std::uint64_t{1} << 60, 0)})).find("a size of"),
            std::string::npos);
}

TEST(Pickle, NothingIsImportedOrCalled) {
  const auto refused = [](const std::string &bytes, const std::string &what) {
    const auto read = pickle::read(bytes);
    ASSERT_FALSE(read) << bytes;
    EXPECT_NE(read.error().message().find(what), std::string::npos) << read.error().message();
  };
  refused(
      "\x80\x02"
      "cos\nsystem\n"s,
      "byte 2: it wants to import something");
  refused("\x80\x04"s + text("os") + text("system") + "\x93.", "byte 16: it wants to import");
  refused("\x80\x02(ios\nsystem\n."s, "import");
  refused("\x80\x04N)R."s, "it wants to make an object");
  refused("\x80\x04N)\x81."s, "it wants to make an object");
  refused("\x80\x04}}b."s, "it wants to make an object");
}

TEST(Pickle, DamageIsNamedByItsPlace) {
  const auto wrong = [](const std::string &bytes) {
    const auto read = pickle::read(bytes);
    EXPECT_FALSE(read) << bytes;
    return read ? "" : read.error().detail().cause;
  };
  EXPECT_EQ(wrong("\x80\x04"s), "byte 2: the file is truncated");
  EXPECT_EQ(wrong("\x80\x04"
                  "X\xff\xff\xff\xff"
                  "a"s),
            "byte 2: the file is truncated");
  EXPECT_EQ(wrong("\x80\x04."s), "byte 2: nothing is there to be used");
  EXPECT_EQ(wrong("\x80\x04(."s), "byte 3: nothing is there to be used");
  EXPECT_EQ(wrong("\x80\x04h\x07."s), "byte 2: it refers to something that is not there");
  EXPECT_EQ(wrong("\x80\x04}(Nu."s), "byte 5: a key without a value");
  EXPECT_EQ(wrong("\x80\x04Nt."s), "byte 3: a mark is missing");
  EXPECT_EQ(wrong("\x80\x09."s), "byte 0: protocol 9");
  EXPECT_EQ(wrong("\x80\x06."s), "byte 0: protocol 6");
  EXPECT_EQ(wrong("\x80\x04\x8a\x09"
                  "12345678"s),
            "byte 2: the file is truncated");
  EXPECT_EQ(wrong("I12x\n."s), "byte 0: what is read as a number is none");
  EXPECT_EQ(wrong("L\n."s), "byte 0: what is read as a number is none");
  EXPECT_EQ(wrong("F1.5.5\n."s), "byte 0: what is read as a number is none");
  EXPECT_EQ(wrong("Np-1\n."s), "byte 1: what is read as a number is none");
  EXPECT_EQ(wrong("g7\n."s), "byte 0: it refers to something that is not there");
  EXPECT_EQ(wrong("Vno end"s), "byte 0: the file is truncated");
  EXPECT_EQ(wrong("S'a\n."s), "byte 0: a text without its quotes");
  EXPECT_EQ(wrong("\x80\x04K\x01K\x02"
                  "a."s),
            "byte 6: what is filled is no list or dictionary");
  EXPECT_EQ(wrong("\x80\x04q\x01."s), "byte 2: nothing is there to be remembered");
  EXPECT_EQ(wrong("\x80\x04\xff."s), "byte 2: no known operation: 0xff");
}

TEST(Pickle, NumbersAndDeepNesting) {
  const auto read =
      pickle::read("\x80\x04(J\xfe\xff\xff\xffK\xffM\x01\x02\x8a\x01\x80G?\xf8\0\0\0\0\0\0\x88t."s);
  ASSERT_TRUE(read) << read.error().message();
  const auto &items = read->root().items;
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(items[0]->integer, -2);
  EXPECT_EQ(items[1]->integer, 255);
  EXPECT_EQ(items[2]->integer, 513);
  EXPECT_EQ(items[3]->integer, -128);
  EXPECT_EQ(items[4]->real, 1.5);
  EXPECT_EQ(items[5]->integer, 1);
  EXPECT_TRUE(pickle::read("\x80\x04]"s + std::string(1000000, '\x85') + "."));
}

TEST(Pickle, ProtocolsZeroToFive) {
  for (const char protocol : {'\x00', '\x01', '\x02', '\x03', '\x04', '\x05'}) {
    const auto read = pickle::read("\x80"s + protocol + "K\x07.");
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->root().integer, 7);
  }
  // {"a": [1, 2**64-1, 1.5, True, None, (1, 2), -5, "x"], "b": the same list}, as Python 3.11 writes it.
  for (const std::string &bytes :
       {"(dp0\nVa\np1\n(lp2\nI1\naL18446744073709551615L\naF1.5\naI01\naNa(I1\nI2\ntp3\naI-5\naVx\n"
        "p4\nasVb\np5\ng2\ns."s,
        "}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01L18446744073709551615L\nG?\xf8\0\0\0\0\0\0I01\nN("
        "K\x01K\x02tq\x03J\xfb\xff"
        "\xff\xffX\x01\0\0\0xq\x04"s
        "eX\x01\0\0\0bq\x05h\x02u."s}) {
    const auto read = pickle::read(bytes);
    ASSERT_TRUE(read) << read.error().message();
    const pickle_value *const a = read->root().find("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a, read->root().find("b"));
    ASSERT_EQ(a->items.size(), 8u);
    EXPECT_EQ(a->items[0]->integer, 1);
    EXPECT_EQ(a->items[1]->kind, pickle_kind::large);
    EXPECT_EQ(a->items[2]->real, 1.5);
    EXPECT_EQ(a->items[3]->kind, pickle_kind::boolean);
    EXPECT_EQ(a->items[3]->integer, 1);
    EXPECT_EQ(a->items[4]->kind, pickle_kind::none);
    EXPECT_EQ(a->items[5]->items.size(), 2u);
    EXPECT_EQ(a->items[6]->integer, -5);
    EXPECT_EQ(a->items[7]->text, "x");
    EXPECT_EQ(kind_of(bytes), record_kind::torch_snapshot);
  }
}

// Each operation that other picklers and protocols use for the same values.
TEST(Pickle, EveryOperationOfAValue) {
  const auto shown = [](const std::string &ops) {
    const std::string bytes = "\x80\x02"s + ops + ".";
    const auto read = pickle::read(bytes);
    EXPECT_TRUE(read) << read.error().message();
    if (!read) return std::string("refused");
    const auto show = [](const pickle_value &v, const auto &self) -> std::string {
      switch (v.kind) {
        case pickle_kind::none:
          return "none";
        case pickle_kind::boolean:
          return v.integer != 0 ? "true" : "false";
        case pickle_kind::integer:
          return std::to_string(v.integer);
        case pickle_kind::text:
          return "'" + std::string(v.text) + "'";
        case pickle_kind::list:
        case pickle_kind::dict: {
          std::string out = v.kind == pickle_kind::list ? "[" : "{";
          for (const pickle_value *item : v.items) out += self(*item, self) + " ";
          return out + (v.kind == pickle_kind::list ? "]" : "}");
        }
        default:
          return "?";
      }
    };
    return show(read->root(), show);
  };
  EXPECT_EQ(shown("N"), "none");
  EXPECT_EQ(shown("\x88"), "true");
  EXPECT_EQ(shown("\x89"), "false");
  for (const std::string &text :
       {"U\x02hi"s, "C\x02hi"s, "\x8c\x02hi"s, "T\x02\0\0\0hi"s, "B\x02\0\0\0hi"s, "X\x02\0\0\0hi"s,
        "\x8d\x02\0\0\0\0\0\0\0hi"s, "\x8e\x02\0\0\0\0\0\0\0hi"s}) {
    EXPECT_EQ(shown(text), "'hi'");
  }
  EXPECT_EQ(shown("J\0\0\0\x80"s), "-2147483648");
  EXPECT_EQ(shown("M\xff\xff"), "65535");
  EXPECT_EQ(shown("\x8a\0"s), "0");
  EXPECT_EQ(shown("\x8a\x02\xff\x7f"), "32767");
  EXPECT_EQ(shown("\x8b\x02\0\0\0\x00\x80"s), "-32768");
  EXPECT_EQ(shown("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff"), "-1");
  EXPECT_EQ(shown("\x8a\x08\0\0\0\0\0\0\0\x80"s), "-9223372036854775808");
  EXPECT_EQ(shown("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0"s), "9223372036854775807");
  EXPECT_EQ(shown("\x8a\x09\0\0\0\0\0\0\0\x80\0"s), "?") << "2^63";
  EXPECT_EQ(shown("\x8a\x0a\0\0\0\0\0\0\0\x80\xff\xff"s), "-9223372036854775808");
  EXPECT_EQ(shown("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff"s), "?") << "-2^63 - 1";
  EXPECT_EQ(shown("S'hi'\n"), "'hi'");
  EXPECT_EQ(shown("\x96\x02\0\0\0\0\0\0\0hi"s), "'hi'");
  EXPECT_EQ(shown("(K\x01\x91"), "[1 ]") << "a frozen set";
  EXPECT_EQ(shown("I00\n"), "false");
  EXPECT_EQ(shown("\x95\0\0\0\0\0\0\0\0K\x05"s), "5") << "a frame is no value";
  EXPECT_EQ(shown("K\x01K\x02"
                  "0"),
            "1")
      << "dropped";
  EXPECT_EQ(shown("K\x01(K\x02K\x03"
                  "1"),
            "1")
      << "dropped up to the mark";
  EXPECT_EQ(shown("K\x01"
                  "2\x86"),
            "[1 1 ]")
      << "twice";
  EXPECT_EQ(shown("K\x01\x85"), "[1 ]");
  EXPECT_EQ(shown("K\x01K\x02K\x03\x87"), "[1 2 3 ]");
  EXPECT_EQ(shown("(K\x01K\x02l"), "[1 2 ]");
  EXPECT_EQ(shown("(K\x01K\x02t"), "[1 2 ]");
  EXPECT_EQ(shown("\x8f(K\x01\x90"), "[1 ]") << "a set";
  EXPECT_EQ(shown("]K\x01"
                  "aK\x02"
                  "a"),
            "[1 2 ]");
  EXPECT_EQ(shown(")"), "[]");
  EXPECT_EQ(shown("(K\x01K\x02"
                  "d"),
            "{1 2 }");
  EXPECT_EQ(shown("}K\x01K\x02s"), "{1 2 }");
  EXPECT_EQ(shown("}(K\x01K\x02u"), "{1 2 }");
  // Remembered by a short number, a long one, and the next that is free.
  EXPECT_EQ(shown("K\x07q\x05"
                  "0K\x08r\x06\0\0\0"
                  "0h\x05j\x06\0\0\0\x86"s),
            "[7 8 ]");
  EXPECT_EQ(shown("K\x07\x94"
                  "0K\x08\x94"
                  "0h\0h\x01\x86"s),
            "[7 8 ]");
}

TEST(Pickle, TheLastValueOfAKeyCounts) {
  const std::string bytes =
      pickled(dict({{"a", integer(1)}, {"b", integer(2)}, {"a", integer(3)}}));
  const auto read = pickle::read(bytes);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->root().find("a")->integer, 3);
  EXPECT_EQ(read->root().find("b")->integer, 2);
  EXPECT_EQ(read->root().find("c"), nullptr);
  EXPECT_EQ(read->root().find("b")->find("a"), nullptr) << "a number has no keys";
}

TEST(Pickle, RandomBytesAreReadOrRefused) {
  std::mt19937_64 dice(9);
  const std::string whole = snapshot({event("alloc", 1, 2, 3), event("free_requested", 1, 2, 3)});
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t n = 1 + dice() % 4; n > 0; --n) {
      bytes[dice() % bytes.size()] = static_cast<char>(dice());
    }
    const auto imported = import_torch_snapshot("s", bytes);
    refused += imported ? 0 : 1;
    if (imported) {
      EXPECT_TRUE(read_trace(imported->front().text));
    }
  }
  EXPECT_GT(refused, 1000);
}

const std::string rmm_columns = "Thread,Time,Action,Pointer,Size,Stream\n";

TEST(ImportRmm, ALogBecomesATrace) {
  EXPECT_EQ(body(import_rmm_log("r", rmm_columns + "1,10:00:00:000001,allocate,0x7f00,100,0x0\r\n"
                                                   "1,t,allocate failure,0x0,999,0\n"
                                                   "2,t,allocate,0x7f80,5,99\n\n"
                                                   "1,t,free,0x7f00,100,99\n"
                                                   "1,t,allocate,0x0,0,0\n"
                                                   "1,t,free,0x0,0,0\n"
                                                   "1,t,free,0x7f80,5,99")),
            "a,0,100,0\no,999,0,0,0,0,0,0\na,1,5,1\nu,0,1\nf,0\nf,1\n");
}

TEST(ImportRmm, BadLinesAreNamed) {
  const auto import = [](const std::string &lines) {
    return trouble(import_rmm_log("r", rmm_columns + lines));
  };
  EXPECT_EQ(trouble(import_rmm_log("r", "Thread,Time\n")),
            "r:1: the columns are not " + rmm_columns.substr(0, rmm_columns.size() - 1));
  EXPECT_EQ(import("1,t,free,0x1,2,0\n"), "r:2: 0x1 is not allocated");
  EXPECT_EQ(import("1,t,allocate,0x1,2,0\n1,t,allocate,0x1,2,0"), "r:3: 0x1 is allocated already");
  EXPECT_EQ(import("1,t,allocate,0x1,2\n"), "r:2: 5 columns instead of 6");
  EXPECT_EQ(import("1,t,allocate,zz,2,0\n"), "r:2: 'zz' is no pointer");
  EXPECT_EQ(import("1,t,allocate,0x1,-2,0\n"), "r:2: '-2' is no size");
  EXPECT_EQ(import("1,t,allocate,0x1,2,x\n"), "r:2: 'x' is no stream");
  EXPECT_EQ(import("1,t,allocate,0x1,281474976710657,0\n"), "r:2: a size of 281474976710657");
  EXPECT_EQ(import("1,t,moved,0x1,2,0\n"), "r:2: 'moved' is neither allocate nor free");
}

TEST(ImportTrace, ContentSaysWhatItIs) {
  EXPECT_EQ(kind_of("\x80\x04"), record_kind::torch_snapshot);
  EXPECT_EQ(kind_of(rmm_columns), record_kind::rmm_log);
  EXPECT_EQ(kind_of("# stillmap-trace v1"), record_kind::stillmap);
  EXPECT_EQ(kind_of(""), record_kind::stillmap);
}

}  // namespace
}  // namespace stillmap::replay
