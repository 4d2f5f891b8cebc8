// stillmap trace compare: PyTorch snapshots taken at out of memory, snapshots of several devices, JSON.
#include <fstream>

#include "stillmap/vmm/base/format.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

// Pickles of protocol 0.
std::string pickled(const std::string &text) {
  return "V" + text + "\n";
}
std::string pickled(std::uint64_t number) {
  return "L" + std::to_string(number) + "L\n";
}
std::string list_of(const std::vector<std::string> &items) {
  std::string out = "(l";
  for (const std::string &item : items) out += item + "a";
  return out;
}
std::string dict_of(const std::vector<std::pair<std::string, std::string>> &members) {
  std::string out = "(d";
  for (const auto &[key, value] : members) out += pickled(key) + value + "s";
  return out;
}
std::string event(const std::string &action, std::uint64_t at, std::uint64_t size) {
  return dict_of({{"action", pickled(action)},
                  {action == "oom" ? "device_free" : "addr", pickled(at)},
                  {"size", pickled(size)},
                  {"stream", pickled(0)}});
}
std::string snapshot(const std::vector<std::string> &segments,
                     const std::vector<std::string> &traces) {
  return dict_of({{"segments", list_of(segments)}, {"device_traces", list_of(traces)}}) + ".";
}

class trace_compare : public command_test {
 protected:
  void SetUp() override {
    command_test::SetUp();
    if (IsSkipped()) return;
    if (!open_device().capabilities().vmm) GTEST_SKIP() << "no virtual memory management";
  }
  std::string put(const std::string &name, const std::string &text) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return "'" + path.string() + "'";
  }
  // Ten segments of 20 MiB, of which a block of 5,000,000 bytes is left in each; then `wanted` bytes are
  // requested, with `device_free` bytes of device memory left.
  std::string out_of_memory(std::uint64_t wanted, std::uint64_t device_free) const {
    constexpr std::uint64_t segment = 20 << 20, block = 5000192, base = std::uint64_t{1} << 40;
    std::vector<std::string> segments, events;
    for (std::uint64_t s = 0; s < 10; ++s) {
      const std::uint64_t at = base + 2 * segment * s;
      events.push_back(event("segment_alloc", at, segment));
      for (std::uint64_t b = 0; b < 4; ++b)
        events.push_back(event("alloc", at + b * block, 5000000));
      segments.push_back(
          dict_of({{"device", pickled(0)},
                   {"address", pickled(at)},
                   {"total_size", pickled(segment)},
                   {"stream", pickled(0)},
                   {"blocks", list_of({dict_of({{"size", pickled(block)},
                                                {"requested_size", pickled(5000000)},
                                                {"state", pickled("active_allocated")}}),
                                       dict_of({{"size", pickled(segment - block)},
                                                {"state", pickled("inactive")}})})}}));
    }
    for (std::uint64_t s = 0; s < 10; ++s) {
      for (std::uint64_t b = 1; b < 4; ++b) {
        events.push_back(event("free_requested", base + 2 * segment * s + b * block, 5000000));
        events.push_back(event("free_completed", base + 2 * segment * s + b * block, 5000000));
      }
    }
    events.push_back(event("oom", device_free, wanted));
    return put("oom.pickle", snapshot(segments, {list_of(events)}));
  }
  // The output of a comparison that draws nothing and checks no bytes.
  ran compared(const std::string &arguments) const {
    return run("trace compare --every-byte-shrink 0 --svg '' " + arguments);
  }
};

void expect_parts(const ran &r, int status, const std::vector<std::string> &parts) {
  EXPECT_EQ(r.status, status) << r.err << r.out;
  for (const std::string &part : parts) {
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in\n" << r.out;
  }
}

TEST_F(trace_compare, says_what_pytorch_ran_out_of_and_whether_it_would_have_been_served) {
  const std::string file = out_of_memory(100 << 20, 50 << 20);
  expect_parts(
      compared(file), 0,
      {"recorded  PyTorch ran out of memory asking for 100 MiB, with 50 MiB of device memory "
       "free and, of the 200 MiB it held, 152.3 MiB free in 10 pieces, the largest 15.2 MiB\n",
       "memory    250 MiB: what PyTorch had", "segments            OUT OF MEMORY at operation 71",
       "          segments: PyTorch's default; segments-expanding: its expandable_segments\n",
       "'stillmap' would have served the request that failed\n",
       "PyTorch with expandable_segments would not have served it ('segments-expanding')\n",
       ": a card of 6 GiB (RTX 2060) has that, and 512 MiB for a CUDA context"});
  expect_parts(compared(out_of_memory(100 << 20, 80 << 20)), 0,
               {"PyTorch with expandable_segments would have served it ('segments-expanding')\n"});
  const ran json = compared("--json " + out_of_memory(100 << 20, 50 << 20));
  expect_parts(
      json, 0,
      {"\"device\": 0", "\"requested_bytes\": 104857600", "\"device_free_bytes\": 52428800",
       "\"held_bytes\": 209715200", "\"free_in_pieces_bytes\": 159713280", "\"pieces\": 10",
       "\"largest_piece_bytes\": 15971328", "\"capacity_bytes\": 262144000",
       "\"would_have_served\": true", "\"smallest_card\"", "\"against_out_of_memory\": true",
       "\"ok\": true"});
  EXPECT_EQ(json.out.front(), '{') << "nothing but the document";
}

// Regression: "4 GiB is enough for [...]; not for segments", and then "'segments' needs 4 GiB".
TEST_F(trace_compare, gives_figures_to_the_byte_where_they_would_read_the_same) {
  const std::string file = out_of_memory(100 << 20, 50 << 20);
  std::string json;
  for (const char c : compared("--json " + file).out) {
    if (c != '\n' && !(c == ' ' && json.ends_with(' '))) json += c;
  }
  const std::size_t at =
      json.find("\"bytes\": ", json.find("\"name\": \"segments\"", json.find("\"needs\"")));
  ASSERT_NE(at, std::string::npos) << json;
  const std::uint64_t need = std::stoull(json.substr(at + 9));
  const auto exact = [](std::uint64_t bytes) {
    return format_bytes(bytes) + " (" + format_count(bytes) + " bytes)";
  };
  const ran r = compared("--capacity " + std::to_string(need - 1) + " " + file);
  expect_parts(r, 0,
               {"verdict   " + exact(need - 1) + " is enough for stillmap",
                "'segments' needs " + exact(need) + ": a card of"});
}

TEST_F(trace_compare, an_imported_trace_has_the_failure_too) {
  const std::string file = out_of_memory(100 << 20, 50 << 20), trace = (folder_ / "t.zst").string();
  const ran imported = run("trace import " + file + " '" + trace + "'");
  expect_parts(imported, 0, {"40 blocks, 190.7 MiB live at most, 1 request out of memory\n"});
  expect_parts(
      compared("'" + trace + "'"), 0,
      {"recorded  the recorded program ran out of memory asking for 100 MiB, with 50 MiB of ",
       "memory    250 MiB: what the recorded program had"});
}

TEST_F(trace_compare, says_that_it_would_not_have_been_served) {
  const std::string file = out_of_memory(std::uint64_t{300} << 20, 50 << 20);
  expect_parts(compared(file), 1,
               {"'stillmap' would not have served the request that failed\n",
                "PyTorch with expandable_segments would not have served it", "FAILED"});
  expect_parts(compared("--json " + file), 1, {"\"would_have_served\": false", "\"ok\": false"});
}

// The device had enough: the memory to compare in is what the program's own limit left it.
TEST_F(trace_compare, knows_a_limit_of_the_program_itself) {
  expect_parts(compared(out_of_memory(100 << 20, std::uint64_t{5} << 30)), 0,
               {"it reached a limit of its own", "memory    200 MiB: what PyTorch had",
                "'stillmap' would have served the request that failed\n"});
}

// The program's device had more memory than this one.
TEST_F(trace_compare, shrinks_a_recording_of_a_larger_device) {
  const std::string file = out_of_memory(100 << 20, 50 << 20);
  expect_parts(run("trace compare --every-byte-shrink 0 --svg '' " + file, "HOSTCUDA=memory=224M"),
               0,
               {"at 1/2 of its size", "memory    125 MiB: what PyTorch had",
                "'stillmap' would have served the request that failed\n"});
}

TEST_F(trace_compare, takes_one_device_of_several) {
  const auto of = [](std::uint64_t mib) {
    return list_of({event("alloc", std::uint64_t{1} << 40, mib << 20)});
  };
  const std::string file = put("two.pickle", snapshot({}, {of(30), of(50), of(40)}));
  expect_parts(
      compared(file), 0,
      {"two.pickle, device 1 of 3: the one with the highest peak; --device chooses another: ",
       "peak of live bytes 50 MiB"});
  expect_parts(compared("--device 2 " + file), 0,
               {"two.pickle, device 2 of 3: ", "peak of live bytes 40 MiB"});
  expect_parts(compared("--json --device 0 " + file), 0,
               {"\"device\": 0", "\"peak_live_bytes\": 31457280"});
  const ran none = compared("--device 3 " + file);
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("has no history of device 3; it has of 0, 1, 2"), std::string::npos)
      << none.err;
}

// Each fits into equal segments there, and Stillmap's pages are as large: no capacity tells them apart.
TEST_F(trace_compare, is_good_where_nothing_differs_at_a_fraction_of_the_size) {
  std::string lines = "# stillmap-trace v1\n";
  for (int i = 0; i < 40; ++i) lines += "a," + std::to_string(i) + ",5000000,0\n";
  for (int i = 0; i < 40; ++i) {
    if (i % 4 != 0) lines += "f," + std::to_string(i) + "\n";
  }
  const std::string file = put("same.trace", lines + "a,40,20000000,0\nf,40\n");
  const ran r = run("trace compare --svg '' " + file);
  expect_parts(r, 0, {"'segments' needs no more at this size; every byte of every block checked"});
  EXPECT_EQ(r.last_line().rfind("stillmap: ok: where 'segments' ran out of memory", 0), 0u);
  expect_parts(run("trace compare --svg '' --json " + file), 0, {"\"ok\": true"});
  // At full size, too, with nothing to compare at all.
  const std::string one = put("one.trace", "# stillmap-trace v1\na,0,20971520,0\nf,0\n");
  expect_parts(run("trace compare --svg '' " + one), 0,
               {"20 MiB, the minimum of 'stillmap'; 'segments' needs no more",
                "20 MiB is enough for 'segments' too"});
}

// RMM's log says only that a request failed.
TEST_F(trace_compare, takes_a_failure_without_figures) {
  const std::string file =
      put("rmm.csv",
          "Thread,Time,Action,Pointer,Size,Stream\n1,t,allocate,0x7f00,4194304,0x0\n"
          "1,t,allocate failure,0x0,8388608,0x0\n1,t,free,0x7f00,4194304,0x0\n");
  expect_parts(compared(file), 0,
               {"recorded  the recorded program ran out of memory asking for 8 MiB\n",
                "'stillmap' would have served the request that failed\n"});
}

}  // namespace
}  // namespace stillmap::testing
