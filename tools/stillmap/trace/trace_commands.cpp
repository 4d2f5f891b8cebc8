#include "tools/stillmap/trace/trace_commands.h"

#include "bench/replay/replay_target.h"
#include "tools/stillmap/cli/commands.h"

namespace stillmap::tool {
namespace {

using namespace replay;

constexpr unsigned max_count = 1'000'000;

void add_record(command &group) {
  const auto [c, o] = group.add(
      "record", run_trace_record,
      "Runs a program and records its allocation requests as a trace. Those are the requests to "
      "stillmap::caching_allocator. A program that is killed leaves its requests up to then.");
  c.text("-o,--output", o.output, "FILE",
         "the trace; compressed if the name ends with .zst (default: PROGRAM.trace.zst)");
  c.arguments(o.program, "PROGRAM", "the program and its arguments, after --").required();
  c.notes =
      "Example: stillmap trace record -o mine.trace.zst -- ./my_program --its options\n"
      "The environment variable STILLMAP_RECORD=FILE does the same without this command.\n";
}

void add_import(command &group) {
  const auto [c, o] = group.add(
      "import", run_trace_import,
      "Converts a PyTorch memory snapshot or a log of RMM to a trace. The snapshot is as "
      "pickled by torch.cuda.memory._dump_snapshot, nothing in it is executed; the log "
      "is of RMM's logging resource. It also compresses or decompresses a trace. A snapshot "
      "of several devices becomes a trace for each: TRACE with .deviceN before its "
      "ending.");
  c.argument(o.from, "FILE", "the file to read; - is standard input").required();
  c.argument(o.to, "TRACE", "the trace to write; compressed if the name ends with .zst").required();
}

void add_replay(command &group) {
  const auto [c, o] = group.add(
      "replay", run_trace_replay,
      "Replays a recorded program on an allocator and reports its memory, time and driver calls.");
  o.allocator = target_kinds().front().name;
  c.argument(o.file, "TRACE",
             "a trace, a PyTorch memory snapshot or a log of RMM, plain or compressed with zstd; - "
             "is standard input")
      .required();
  c.text("--allocator", o.allocator, "NAME",
         "one of those listed below (default: " + o.allocator + ")");
  c.text("--capacity", o.capacity, "SIZE",
         "bytes of device memory; 1.05x: this many times the peak of live bytes (default: all of "
         "the device's)");
  c.flag("--find-min-capacity", o.min_capacity,
         "also search for the least memory at which it does not run out");
  c.number("--iterations", o.iterations, 1u, max_count, "N",
           "number of iterations; the last ones are repeated if the trace has fewer (default: the "
           "trace as recorded)");
  c.size("--page-size", o.page_size,
         "stillmap: bytes in which memory is created and moved, a power of two (default: the "
         "device's granularity, 2 MiB)");
  c.size("--max-split-size", o.max_split_size,
         "segments, torch: bytes; larger free blocks are not split (PyTorch's max_split_size_mb)");
  c.number("--roundup-power2-divisions", o.roundup_power2_divisions, 1u, 64u, "N",
           "segments, torch: round sizes up to N steps between powers of two (PyTorch's setting of "
           "that name)");
  add_driver_options(c, o.driver);
  add_profile_option(c, o.profile);
  c.flag("--verify", o.verify,
         "write a pattern to the ends of every block and around every page boundary in it, and "
         "check it before the block is freed");
  c.flag("--every-byte", o.every_byte, "write and check every byte").with("--verify");
  c.number("--shrink", o.shrink, 1u, max_count, "N",
           "divide every size by N, to verify a large program on a machine with less memory");
  c.text("--map", o.map, "FILE",
         "write a map of the heap at its peak in the last iteration, or where it ran out of "
         "memory: FILE.svg and .html are pictures, .json is data, .pickle is for PyTorch's viewer");
  c.text("--beside", o.beside, "NAME",
         "in a picture: replay this allocator too and draw it beside the first")
      .with("--map");
  c.json(o.json);
  c.notes = "ALLOCATORS:\n";
  for (const target_kind &k : target_kinds()) {
    c.notes += "  " + std::string(k.name) + std::string(20 - std::string(k.name).size(), ' ') +
               k.what + '\n';
  }
  c.notes +=
      "\nOn hostcuda, replays need no memory (they run `unbacked`); with --verify they need as\n"
      "much as is written (`lazy`).\n"
      "Example: stillmap trace replay bench/traces/llama_1b.trace.zst --iterations 5 "
      "--find-min-capacity\n";
}

void add_compare(command &group) {
  const auto [c, o] =
      group.add("compare", run_trace_compare,
                "Replays a recorded program on every allocator in memory that PyTorch's default "
                "policy (segments) runs out of, and prints a table and for which of them it is "
                "enough. Stillmap's allocator does not run out: the content of every block is "
                "checked, and both heaps are drawn at the moment the other does. For a PyTorch "
                "snapshot in which a "
                "request ran out of memory: says whether Stillmap would have served it in the same "
                "memory, and which card has enough.");
  c.argument(o.file, "TRACE", "a recorded program, as for stillmap trace replay").required();
  c.text("--allocator", o.ours, "NAME",
         "the allocator that can move pages (default: " + o.ours + ")");
  c.text("--against", o.other, "NAME",
         "the allocator it is compared with (default: " + o.other + ")");
  c.size("--capacity", o.capacity,
         "bytes of device memory (default: what PyTorch had where the snapshot has a request that "
         "ran out of memory, else halfway between the minima of the two)");
  add_driver_option(c, o.driver.driver);
  c.number("--device", o.device, 0, 1 << 20, "N",
           "the device whose history is compared, in a PyTorch snapshot (default: the one with the "
           "highest peak of live bytes); else the ordinal of the driver's device (default: 0)");
  add_profile_option(c, o.profile);
  c.number("--shrink", o.shrink, 1u, max_count, "N",
           "divide every size by N (default: 1, or what the device has room for)");
  c.number("--every-byte-shrink", o.every_byte_shrink, 0u, 1000u, "N",
           "replay once more at 1/N of that size and check every byte of every block; 0: skip it "
           "(default: 32)");
  c.text("--svg", o.svg, "PATH",
         "write the picture to this file; '' writes none (default: " + o.svg + ")");
  c.text("--timeline", o.timeline, "PATH",
         "write a picture of memory over the run on each allocator to this file, PATH.svg");
  c.json(o.json);
  c.notes =
      "segments is PyTorch's default policy, segments-expanding its expandable_segments;\n"
      "stillmap trace replay --help lists all allocators.\n"
      "On hostcuda only memory that is written is used: about 1 GiB for a program of 24 GiB.\n"
      "Example: stillmap trace compare bench/traces/llama_1b_variable.trace.zst\n";
}

void add_soak(command &group) {
  const auto [c, o] =
      group.add("soak", run_trace_soak,
                "Simulates a day of an inference server on the caching allocator. It runs at full "
                "speed, and reports time, memory and driver calls by the hour.");
  c.text("", o.file, "REQUESTS", "recorded requests, .csv or .jsonl (default: random requests)");
  c.number("--hours", o.hours, 0.001, 10000.0, "N", "hours of simulated time (default: 24)");
  c.number("--rate", o.rate, 0.001, 100000.0, "N",
           "random requests per second, on average (default: 5)");
  c.number("--speed", o.speed, 0.001, 100000.0, "N",
           "replay recorded requests N times as fast as they arrived")
      .with("REQUESTS");
  c.number("--seed", o.seed, std::uint64_t{0}, UINT64_MAX, "N",
           "seed of the random requests (default: 1)");
  c.size("--capacity", o.capacity, "bytes of device memory (default: all of the device's)");
  c.size("--cache", o.cache, "bytes of the server's cache (default: all but the weights)");
  c.size("--weights", o.server.weight_bytes, "bytes of the model's weights (default: 16G)");
  c.size("--token", o.server.token_bytes, "bytes of cache for each token (default: 128K)");
  c.number("--chunk", o.server.chunk, 1u, max_count, "N",
           "tokens by which a cache grows (default: 64)");
  c.flag("--two-streams", o.server.two_streams,
         "compute prompts on a second stream; their cache is then used on both");
  add_driver_options(c, o.driver);
  add_profile_option(c, o.profile);
  c.json(o.json);
  c.notes =
      "Recorded requests are a CSV file with a header line, then arrival, prompt tokens and\n"
      "generated tokens (the Azure LLM inference traces), or JSON lines with timestamp,\n"
      "input_length and output_length (Mooncake's traces); they are repeated. Without a file,\n"
      "requests are random: --rate per second on average, half of that at midnight, one and a\n"
      "half times that at noon. Each request has a block for its prompt's cache and one for each\n"
      "--chunk tokens; each step allocates and frees its activations; all blocks of a request are\n"
      "freed when it is answered.\n";
}

}  // namespace

void add_trace_commands(command &root) {
  command &group =
      root.add("trace", "Allocation traces of real programs: record, import and replay them.");
  add_record(group);
  add_import(group);
  add_replay(group);
  add_compare(group);
  add_soak(group);
}

}  // namespace stillmap::tool
