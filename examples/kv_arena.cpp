// The key-value cache of an inference server, whose memory follows the tokens. First in blocks, as paged attention has
// them; then in sequences, each of which is one range of addresses.
#include <cstdint>
#include <span>

#include "examples/example.h"
#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/allocators/kv/sequence_arena.h"

using namespace stillmap;

namespace {

// 32 layers, 8 heads of 128 numbers of 2 bytes: 128 KiB a token, as Llama 3 8B has.
constexpr kv::shape model{.layers = 32, .tensors = 2, .token_bytes = 8 * 128 * 2};

// [blocks]
// The addresses of 64 GiB, and memory for the blocks that requests use.
void serve_blocks(const device &gpu, const stream &work) {
  const auto cache = example::must(
      kv::block_arena::create(gpu, {.shape = model, .tokens_per_block = 16, .blocks = 32768}));
  // While a step runs: what the sequences of the next one need.
  const kv::growth request{.blocks = 65};
  example::must(cache->prepare({&request, 1}, work));
  // Between two steps. Costs no driver call: a worker has mapped the pages.
  example::must(cache->begin_step());

  std::vector<kv::block_id> prompt(63), answer(2);
  example::must(cache->allocate(prompt));
  example::must(cache->allocate(answer, prompt.back()));
  // Kernels get cache->tensor(layer, 0 or 1), the distance cache->layout().block_stride(), and the ids.

  // The request has ended: its prompt stays in the prefix cache, its answer does not.
  example::must(cache->release(prompt, kv::block_arena::contents::keep));
  example::must(cache->release(answer));
  example::must(cache->prepare(0, work));
  example::must(cache->begin_step());
  std::printf("%zu MiB for %zu cached blocks\n", cache->stats().mapped_bytes >> 20,
              cache->stats().cached);
  example::check(cache->stats().mapped_bytes <= 64 * std::size_t{2} << 20,
                 "memory follows the blocks");

  // Another request has the same prompt; and one day the memory is needed.
  example::must(cache->retain(std::span(prompt).first(32)));
  std::vector<kv::block_id> evicted;
  example::must(cache->evict(31, evicted));
  example::check(cache->stats().cached == 0 && cache->stats().used == 32,
                 "a cached prefix is used");
  example::must(cache->release(std::span(prompt).first(32)));
}
// [/blocks]

// [sequences]
// A prompt of 2,000 tokens is stored once for all that continue it.
void serve_sequences(const device &gpu, const stream &work) {
  const auto cache = example::must(
      kv::sequence_arena::create(gpu, {.shape = model, .longest = 32768, .sequences = 64}));
  const auto step = [&] {
    example::must(cache->prepare(work));
    example::must(cache->begin_step(work));
  };
  const kv::sequence_id prompt = example::must(cache->add());
  example::must(cache->reserve(prompt, 2000));
  step();
  const device_address keys = cache->tensor(prompt, 0, 0);
  const std::vector<std::uint16_t> key(8 * 128, 7);
  example::write(gpu, keys + 1999 * cache->layout().block_stride(), key.data(),
                 key.size() * sizeof key[0]);

  std::vector<kv::sequence_id> answers;
  for (int i = 0; i < 10; ++i) answers.push_back(example::must(cache->fork(prompt, 2000)));
  for (const kv::sequence_id a : answers) example::must(cache->reserve(a, 2010));
  step();
  example::must(work.synchronize());
  std::printf("%zu MiB of addresses with memory, %zu MiB of memory\n",
              cache->stats().mapped_bytes >> 20, cache->stats().memory_bytes >> 20);
  example::check(cache->stats().memory_bytes < 400u << 20, "eleven prompts are stored once");
  example::check(example::read<std::uint16_t>(
                     gpu, cache->tensor(answers[3], 0, 0) + 1999 * cache->layout().block_stride(),
                     key.size()) == key,
                 "a fork has the tokens of its prompt");
  example::must(cache->reserve(prompt, 30000));
  step();
  example::check(cache->tensor(prompt, 0, 0) == keys, "a sequence grows in place");
}
// [/sequences]

}  // namespace

int main() {
  const device gpu = example::open_mapping_device("a cache that follows its tokens");
  const stream work = example::must(stream::create(gpu));
  serve_blocks(gpu, work);
  serve_sequences(gpu, work);
  return 0;
}
