// Attaches published memory over a connection to a holder.
#pragma once

#include <string>
#include <variant>

#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/internal/messages.h"

namespace stillmap::publication {

// Threads: externally synchronised.
class reader {
 public:
  reader(const device &d, const attach_options &options) : device_(d), options_(options) {}

  // With `may_claim`, the name may be claimed in place of attached.
  result<std::variant<attached_memory, claim>> run(const std::string &address,
                                                   const std::string &name, bool may_claim);

 private:
  // Takes the channel, which becomes the lease, once everything is mapped.
  result<attached_memory> map(checkpoint::socket_channel &with, message_stream &messages,
                              attached_reply reply);
  void reached(step s) const {
    if (options_.on_step) options_.on_step(s);
  }

  const device &device_;
  const attach_options &options_;
};

}  // namespace stillmap::publication
