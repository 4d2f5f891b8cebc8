// Messages as a hostile peer writes them: bytes with named fields, each of which can be replaced by a
// lie. The matrices of lies are generated from the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace stillmap::handoff::testing {

// A message on the wire, header included.
class frame {
 public:
  frame(std::uint16_t kind, std::string name);
  // Each appends a field to the body. A text is its length and its bytes.
  frame &number(const std::string &name, std::uint64_t value, std::size_t bytes);
  frame &text(const std::string &name, const std::string &value);
  frame &block(const std::string &name, std::span<const unsigned char> bytes);
  frame &with(std::vector<int> fds);  // attached to the first byte; not owned
  // The same message with another body, and a header that fits it.
  frame with_body(std::vector<std::byte> body) const;

  const std::string &name() const { return name_; }
  const std::vector<std::byte> &bytes() const { return bytes_; }
  std::vector<std::byte> body() const;
  const std::vector<int> &fds() const { return fds_; }

  struct lie;
  // Every number as 0, 1, one more and less, a page more and less, twice, all ones and without or with
  // its highest bit; every text with control characters, NULs and what is no UTF-8; every kind; and
  // bodies cut off at every byte, or longer.
  std::vector<lie> lies() const;

 private:
  struct field {
    std::string name;
    std::size_t at, bytes;
    bool is_number;
  };
  void set_number(std::size_t at, std::uint64_t value, std::size_t bytes);
  std::uint64_t get_number(const field &f) const;
  std::string name_;
  std::vector<std::byte> bytes_;
  std::vector<int> fds_;
  std::vector<field> fields_;
};

struct frame::lie {
  std::string field;  // "layout: block 0 bytes", "layout: cut off"
  std::string value;
  frame message;
};

// The part of a conversation that is written, and whether the peer then ends it or says nothing more.
// Throws std::runtime_error where the socket does not take it at once.
void write_frames(int socket, std::span<const frame> all,
                  std::size_t bytes = std::numeric_limits<std::size_t>::max());
// Writes bytes with descriptors at the first one.
void write_with(int socket, std::span<const std::byte> bytes, std::span<const int> fds);
// The peer sends nothing more, and still reads.
void end_writing(int socket);

// Lists with messages left out, repeated, exchanged with the next, and replaced by each other one.
struct disorder {
  std::string what;
  std::vector<frame> messages;
};
std::vector<disorder> disorders(const std::vector<frame> &good);

}  // namespace stillmap::handoff::testing
