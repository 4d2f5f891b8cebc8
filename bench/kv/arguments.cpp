#include "bench/kv/arguments.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "bench/kv/cache_policy.h"
#include "stillmap/vmm/base/parse_bytes.h"

namespace stillmap::kv_bench {
namespace {

constexpr std::size_t smoke_requests = 40;

template <class Number>
bool read_number(const std::string &text, Number least, Number &into) {
  Number n{};
  const char *const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, n);
  if (code != std::errc() || stop != end || n < least) return false;
  into = n;
  return true;
}

// "32x2x2048"
bool read_shape(const std::string &text, kv::shape &into) {
  const std::size_t first = text.find('x'), second = text.find('x', first + 1);
  if (first == text.npos || second == text.npos) return false;
  return read_number(text.substr(0, first), 1u, into.layers) &&
         read_number(text.substr(first + 1, second - first - 1), 1u, into.tensors) &&
         read_number(text.substr(second + 1), std::size_t{1}, into.token_bytes);
}

bool read_size(const std::string &text, std::size_t &into) {
  const auto bytes = parse_bytes(text, "kv_bench");
  if (bytes) into = *bytes;
  return bytes.has_value();
}

bool set_option(const std::string &name, const std::string &value, kv_arguments &into) {
  serving_model &m = into.model;
  if (name == "--cache") return read_size(value, m.cache_bytes);
  if (name == "--spare") return read_size(value, m.spare_bytes);
  if (name == "--pool") return read_size(value, m.pool_bytes);
  if (name == "--shape") return read_shape(value, m.shape);
  if (name == "--step-seconds") return read_number(value, 1e-6, m.step_seconds);
  if (name == "--prefill") return read_number(value, 1u, m.prefill_tokens);
  if (name == "--batch") return read_number(value, 1u, m.batch);
  if (name == "--idle-seconds") return read_number(value, 0.0, m.idle_seconds);
  if (name == "--requests") return read_number(value, std::size_t{1}, into.requests);
  if (name == "--seed") return read_number(value, std::uint64_t{0}, into.seed);
  if (name == "--samples") return read_number(value, std::size_t{1}, into.samples);
  if (name == "--policy") return !(into.policy = value).empty();
  if (name == "--csv") return !(into.csv = value).empty();
  if (name == "--svg") return !(into.svg = value).empty();
  if (name == "--operations") return !(into.operations = value).empty();
  if (name == "--json" || name == "--benchmark_out") return !(into.json = value).empty();
  return name.starts_with("--benchmark_");  // of the other benchmarks: tools/bench.sh
}

}  // namespace

tl::expected<kv_arguments, std::string> parse_arguments(const std::vector<std::string> &words) {
  kv_arguments into;
  for (const std::string &word : words) {
    if (word == "--help" || word == "-h") {
      into.help = true;
    } else if (word == "--markdown") {
      into.markdown = true;
    } else if (word == "--smoke") {
      into.smoke = true;
      into.requests = smoke_requests;
      into.model.idle_seconds = 1;
    } else if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
      if (!set_option(word.substr(0, equals), value, into)) {
        return tl::unexpected<std::string>("'" + word + "' is no option, or its value is wrong");
      }
    } else if (into.trace.empty()) {
      into.trace = word;
    } else {
      return tl::unexpected<std::string>("'" + word + "' is one file too many");
    }
  }
  return into;
}

std::string help_text() {
  std::string out = R"(Usage: kv_bench [OPTION...] [TRACE]

Serves recorded requests with several policies of memory for a key-value cache, all with the same steps, and prints
what each holds of the device's memory and asks of the driver. The arenas run on hostcuda without bytes; the other
policies are models by arithmetic. No figure is of a GPU: times of driver calls are those of a cost table.

TRACE is a CSV file with arrival, prompt tokens and generated tokens, or a .jsonl file with timestamp (ms),
input_length, output_length and hash_ids, one for each 512 tokens of the prompt; equal ids are shared. Without it,
requests are generated.

The server is a model. A step takes a fixed time, and is planned while the one before runs. Each running sequence
gets one token a step; prompts are computed in order of arrival, in chunks, with what --prefill leaves. A request is
admitted when all of its prompt fits. Prompt parts of 512 tokens that are computed stay cached when the request is
answered, and later requests share them; where memory is short, those are evicted that were used longest ago, and
then the youngest sequence is preempted and computed again. Memory is counted in blocks of 16 tokens. Without
requests the server does nothing, but lets the policy tidy up (kv::block_arena::compact, prepare(0)). At the end it
idles for some seconds, after which "idle" is taken, and after trim() "trimmed".

  --cache=SIZE         memory for tokens (64G)
  --shape=LxTxB        layers, tensors of a layer, bytes of a token in a tensor (32x2x2048)
  --step-seconds=S     (0.02)   --prefill=N   prompt tokens of a step (1024)   --batch=N   sequences (256)
  --idle-seconds=S     (10)     --requests=N  the first ones (all)             --seed=N    of generated ones (1)
  --spare=SIZE         memory that an arena keeps for what comes next (its default)
  --pool=SIZE          free pages that its pool keeps (0)
  --policy=NAME        one alone
  --markdown           a table for a page
  --csv=FILE --json=FILE --svg=FILE    bytes held over time; all figures; a picture    --samples=N  (400)
  --operations=FILE    no measurement: writes the allocations and frees of blocks (bench/kv/operations.h), for
                       bench/kv/kvcached_itself.py
  --smoke              a few requests, to see that it runs

Policies:
)";
  for (const policy_kind &p : policy_kinds()) {
    out += "  " + std::string(p.name) +
           std::string(17 - std::min<std::size_t>(16, std::string(p.name).size()), ' ') + p.what +
           "\n";
  }
  return out;
}

}  // namespace stillmap::kv_bench
