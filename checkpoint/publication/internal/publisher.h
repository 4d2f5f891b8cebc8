// Publishes memory over a connection to a holder.
#pragma once

#include <span>
#include <string>

#include "stillmap/checkpoint/publication/internal/messages.h"
#include "stillmap/checkpoint/publication/publication.h"

namespace stillmap::publication {

// Threads: externally synchronised.
class publisher {
 public:
  publisher(const device &d, const publish_options &options) : device_(d), options_(options) {}

  // Checks everything that needs no holder.
  status describe(const std::string &name, std::span<const std::string> tags);
  // Makes the memory read-only, and sends it. Requires: describe() succeeded.
  result<published_memory> send(checkpoint::socket_channel &to);

 private:
  // Access rights of adjacent places.
  struct access_run {
    virtual_range range;
    std::uint32_t access;  // in the layout's lists
  };
  std::vector<access_run> access_runs() const;
  // Sets the access rights that the layout has for each place, or only those to read.
  status set_access(bool writable);
  // Sets them back after a failure.
  void undo();
  status send_all(message_stream &to);
  // Learns what the holder did after the commit.
  result<published_memory> confirm(checkpoint::socket_channel &to);
  void reached(step s) const {
    if (options_.on_step) options_.on_step(s);
  }

  const device &device_;
  const publish_options &options_;
  manifest manifest_;
  image::sha256 id_;
  std::vector<page_ptr> pages_;
};

}  // namespace stillmap::publication
