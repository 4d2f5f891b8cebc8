// One page shared by two processes: the exporter creates it and sends its file descriptor over a Unix
// socket; the importer maps it, and each reads what the other wrote, without a copy.
//
// CUDA does not work in a child that was forked after cuInit, so the child is forked first.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <numeric>

#include "examples/example.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/physical_memory.h"

using namespace stillmap;

namespace {

void send_fd(int socket, int fd) {
  char byte = 'p', control[CMSG_SPACE(sizeof fd)] = {};
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr *const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) example::stop("the descriptor was not sent");
}

// Returns an invalid descriptor if the exporter closed the socket, having nothing to share.
owned_fd receive_fd(int socket) {
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return owned_fd();
  const cmsghdr *const part = CMSG_FIRSTHDR(&message);
  if (part == nullptr || part->cmsg_type != SCM_RIGHTS) return owned_fd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
  return owned_fd(fd);
}

void notify(int socket) {
  const char done = 'd';
  if (send(socket, &done, 1, MSG_NOSIGNAL) != 1) example::stop("the other process is gone");
}
void await(int socket) {
  char done = 0;
  if (recv(socket, &done, 1, 0) != 1) example::stop("the other process failed");
}

std::vector<std::uint32_t> numbers(std::size_t bytes, std::uint32_t first) {
  std::vector<std::uint32_t> out(bytes / sizeof(std::uint32_t));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// Maps the page at a new address. The mapping keeps the reservation alive.
mapping map_page(const device &d, page_pool &pool, physical_memory memory) {
  const reservation addresses = example::must(reservation::create(d, pool.page_bytes()));
  return example::must(mapping::create(addresses, 0, example::must(pool.adopt(std::move(memory)))));
}

int importer(int socket) {
  const owned_fd fd = receive_fd(socket);
  if (fd.get() < 0) return 0;  // the exporter prints the reason
  const device d = example::must(device::open());
  const auto pool = example::must(page_pool::create(d, {.exportable = handle_type::posix_fd}));
  const std::size_t bytes = pool->page_bytes();
  const mapping here = map_page(d, *pool, example::must(physical_memory::import_fd(d, fd, bytes)));
  const auto seen = example::read<std::uint32_t>(d, here.range().begin, bytes / 4);
  example::check(seen == numbers(bytes, 1), "the importer reads what the exporter wrote");
  example::write(d, here.range().begin, numbers(bytes, 77).data(), bytes);
  notify(socket);
  await(socket);
  return 0;
}

void exporter(int socket) {
  const device d = example::open_mapping_device("sharing pages");
  if (!d.capabilities().posix_fd_export) {
    std::printf("skipped: %s exports no file descriptors\n", d.name().c_str());
    return;
  }
  const auto pool = example::must(page_pool::create(d, {.exportable = handle_type::posix_fd}));
  physical_memory memory =
      example::must(physical_memory::create(d, pool->page_bytes(), pool->properties()));
  const exported_fd fd = example::must(memory.export_fd());
  const std::size_t bytes = memory.bytes();
  const mapping here = map_page(d, *pool, std::move(memory));
  example::write(d, here.range().begin, numbers(bytes, 1).data(), bytes);

  send_fd(socket, fd.get());
  await(socket);
  const auto seen = example::read<std::uint32_t>(d, here.range().begin, bytes / 4);
  example::check(seen == numbers(bytes, 77), "the exporter reads what the importer wrote");
  notify(socket);
}

}  // namespace

int main() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) example::stop("no socket");
  const pid_t child = fork();
  if (child < 0) example::stop("no second process");
  if (child == 0) {
    close(pair[0]);
    return importer(pair[1]);
  }
  close(pair[1]);
  {
    const owned_fd socket(pair[0]);
    exporter(socket.get());
  }
  int outcome = 0;
  if (waitpid(child, &outcome, 0) != child || outcome != 0) example::stop("the importer failed");
  return 0;
}
