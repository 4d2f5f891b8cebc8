// A link that is lost right after the commit.
#pragma once

#include <atomic>
#include <memory>

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration::testing {

// Delivers a commit, and nothing after it.
class commit_only_transport final : public transport {
 public:
  explicit commit_only_transport(std::unique_ptr<transport> to) : to_(std::move(to)) {}

  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds wait) override {
    if (lost_) return cut_off();
    auto c = to_->connect(wait);
    if (!c) return c;
    return std::make_unique<lossy_channel>(*this, std::move(*c));
  }

 private:
  class lossy_channel final : public channel {
   public:
    lossy_channel(commit_only_transport &of, std::unique_ptr<channel> c)
        : of_(of), c_(std::move(c)) {}
    status handshake(std::chrono::milliseconds wait) override { return c_->handshake(wait); }
    peer_identity peer() const override { return c_->peer(); }
    status send(std::span<const std::byte> bytes, std::chrono::milliseconds wait) override {
      if (of_.lost_) return cut_off();
      const status s = c_->send(bytes, wait);
      if (bytes.size() >= header::bytes) {
        const auto h = decode_header(bytes.first<header::bytes>());
        if (h && h->what == kind::commit) of_.lost_ = true;
      }
      return s;
    }
    status receive(std::span<std::byte> into, std::chrono::milliseconds wait) override {
      if (of_.lost_) return cut_off();
      return c_->receive(into, wait);
    }
    void shutdown() noexcept override { c_->shutdown(); }

   private:
    commit_only_transport &of_;
    std::unique_ptr<channel> c_;
  };
  static tl::unexpected<error> cut_off() { return make_error(errc::busy, "the link is cut"); }
  std::unique_ptr<transport> to_;
  std::atomic<bool> lost_{false};
};

}  // namespace stillmap::migration::testing
