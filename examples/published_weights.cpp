// One process publishes weights, and others map them without a copy. Publisher, holder and readers are in this
// process here; each may be in one of its own, of any language.
#include <unistd.h>

#include <string>
#include <variant>
#include <vector>

#include "examples/example.h"
#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/holder.h"
#include "stillmap/checkpoint/publication/publication.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;
using namespace stillmap::literals;
using example::must;

namespace {

growable_buffer load_weights(const device &gpu, const char *tag, char fill) {
  const auto pool = must(page_pool::create(gpu, {.exportable = handle_type::posix_fd}));
  auto weights = must(growable_buffer::create(gpu, {.tag = tag, .pools = {pool}}));
  must(weights.resize(8_MiB));
  const std::vector<char> bytes(8_MiB, fill);
  example::write(gpu, weights.address(), bytes.data(), bytes.size());
  return weights;
}

char first_byte(const device &gpu, const publication::attached_memory &m) {
  return example::read<char>(gpu, m.tagged("weights").front().begin, 1).front();
}

void publish_and_attach(const device &gpu, const std::string &holder) {
  // The publisher has the addresses already in this process.
  publication::attach_options options;
  options.where = checkpoint::placement::anywhere;
  {
    // [publish]
    const growable_buffer weights = load_weights(gpu, "weights", 'a');  // of exportable pages
    const std::vector<std::string> tags{"weights"};
    must(publication::publish(gpu, holder, "llama", tags));  // read-only from here on
    // [/publish]
  }
  // [attach]
  auto reader = must(publication::attach(gpu, holder, "llama", options));
  const virtual_range weights = reader.tagged("weights").front();
  // [/attach]
  example::check(first_byte(gpu, reader) == 'a', "a reader sees them though the publisher ended");

  // [write]
  const stream own = must(stream::create(gpu));
  must(reader.make_writable({weights.begin, 4}, own));  // copies one page
  // [/write]
  example::write(gpu, weights.begin, "b", 1);
  auto other = must(publication::attach(gpu, holder, "llama", options));
  example::check(first_byte(gpu, other) == 'a', "what one reader writes, no other sees");

  // [first_of_many]
  auto found = must(publication::attach_or_claim(gpu, holder, "mistral", options));
  if (auto *const mine = std::get_if<publication::claim>(&found)) {
    const growable_buffer loaded = load_weights(gpu, "mistral", 'm');  // the others wait
    must(std::move(*mine).publish(gpu, std::vector<std::string>{"mistral"}));
  }
  // [/first_of_many]
  example::check(must(publication::list(holder)).size() == 2, "both names are held");
}

}  // namespace

int main() {
  const device gpu = example::open_mapping_device("publishing");
  const std::string address = "@stillmap-example-" + std::to_string(::getpid());
  const auto holder = must(publication::holder::create(address));
  publish_and_attach(gpu, address);
}
