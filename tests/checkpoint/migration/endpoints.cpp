#include "tests/checkpoint/migration/endpoints.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/checkpoint/handoff/processes.h"

namespace stillmap::migration::testing {
namespace {

constexpr std::array<const char *, 4> ends{"source", "destination", "third", "fourth"};

template <class T>
T must(result<T> r) {
  if (!r) throw std::runtime_error(r.error().message());
  return std::move(*r);
}

void write(const std::string &path, const std::string &text) {
  std::ofstream(path + ".new") << text;
  ::chmod((path + ".new").c_str(), 0600);  // keys are read only from such a file
  std::rename((path + ".new").c_str(), path.c_str());
}

}  // namespace

test_site::test_site() {
  std::string name = ::testing::TempDir() + "/stillmap_migration_XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  folder_ = name;
  made_ = true;
  note_event("run");
  for (const char *const end : ends) {
    ::mkdir(records(end).c_str(), 0700);
    const credentials c = must(make_self_signed(std::string("the ") + end));
    write(folder_ + '/' + end + ".crt", c.certificate);
    write(folder_ + '/' + end + ".key", c.key);
  }
}

test_site::~test_site() {
  std::error_code left;
  if (made_) std::filesystem::remove_all(folder_, left);
}

credentials test_site::of(const char *end) const {
  const std::string mine = folder_ + '/' + end;
  credentials c = must(load_credentials(mine + ".crt", mine + ".key"));
  for (const std::string theirs : ends) {
    if (theirs == end) continue;
    const std::string certificate = folder_ + '/' + theirs + ".crt";
    c.fingerprints.push_back(must(fingerprint_of(must(load_credentials(certificate, "")))));
  }
  return c;
}

void test_site::publish_address(const std::string &where, const char *end) const {
  write(folder_ + '/' + end + ".address", where);
}

std::string test_site::address(const char *end) const {
  std::ifstream in(folder_ + '/' + end + ".address");
  std::string text;
  std::getline(in, text);
  return text;
}

send_options source_options(const test_site &m, const char *end) {
  send_options options;
  options.records = m.records(end);
  options.task.bytes.fill(std::byte{7});
  options.chunk_bytes = 64 << 10;
  options.timeout = std::chrono::milliseconds(30'000);
  options.resolve_timeout = std::chrono::milliseconds(0);
  options.on_progress = [end](const progress &p) {
    if (p.step > step::verified) note_event(name_of(p.step), end);
    die_at(p.step);
  };
  return options;
}

receive_options destination_options(const test_site &m, const char *end) {
  receive_options options;
  options.records = m.records(end);
  options.timeout = std::chrono::milliseconds(30'000);
  options.on_step = [end](step s) {
    note_event(name_of(s), end);
    die_at(s);
  };
  return options;
}

std::unique_ptr<transport> to_destination(const test_site &m) {
  return transport_between(m, "source", "destination");
}

std::unique_ptr<transport> transport_between(const test_site &m, const char *from, const char *to) {
  for (int i = 0; i < 3000 && m.address(to).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (m.address(to).empty())
    throw std::runtime_error(std::string(to) + " has not listened for 30 s");
  return must(create_tls_transport(m.address(to), m.of(from)));
}

std::unique_ptr<acceptor> at_destination(const test_site &m) {
  return acceptor_at(m, "destination");
}

std::unique_ptr<acceptor> acceptor_at(const test_site &m, const char *end) {
  const std::string before = m.address(end);
  auto out = must(create_tls_acceptor(before.empty() ? "127.0.0.1:0" : before, m.of(end)));
  m.publish_address(out->address(), end);
  return out;
}

bool is_of_groups(step s) {
  return s == step::ready || s == step::group_committed;
}

void die_at(step s) {
  handoff::testing::die_if_told(static_cast<handoff::step>(s));
}

}  // namespace stillmap::migration::testing
