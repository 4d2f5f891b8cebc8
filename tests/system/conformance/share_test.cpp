// Memory shared as a file descriptor: within a process, with another process, and by a process that
// exits.
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class share : public vmm_test {
 protected:
  void SetUp() override {
    vmm_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0)
      SKIP_BECAUSE("the device exports no file descriptors (attribute 103 is 0)");
    bytes = 4 * page;
  }

  int export_fd(CUmemGenericAllocationHandle handle) const {
    int fd = -1;
    MUST(cu().MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return fd;
  }

  CUmemGenericAllocationHandle import_fd(int fd) const {
    CUmemGenericAllocationHandle handle = 0;
    MUST(cu().MemImportFromShareableHandle(
        &handle, reinterpret_cast<void *>(static_cast<std::uintptr_t>(fd)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return handle;
  }

  // A file descriptor that this process' child inherits, whatever the driver's own is like.
  static int inheritable(int fd) {
    const int copy = dup(fd);
    close(fd);
    return copy;
  }

  std::size_t bytes = 0;
};

// A pair of sockets, one end of which a child inherits.
struct socket_pair {
  socket_pair() {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error("socketpair failed");
    theirs = dup(ends[1]);
    close(ends[1]);
  }
  ~socket_pair() {
    close(ends[0]);
    if (theirs >= 0) close(theirs);
  }
  void theirs_is_passed_on() {
    close(theirs);
    theirs = -1;
  }
  int ours() const { return ends[0]; }
  int ends[2];
  int theirs;
};

void say(int socket) {
  const char byte = 's';
  if (send(socket, &byte, 1, MSG_NOSIGNAL) != 1) throw std::runtime_error("the other end is gone");
}

bool hear(int socket) {
  char byte = 0;
  return recv(socket, &byte, 1, 0) == 1;
}

TEST_F(share, a52_a_mapping_survives_closing_the_fd) {
  physical memory(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  reserved ours(bytes), theirs(bytes);
  mapped here(ours.at, memory);
  MUST(grant(ours.at, bytes));
  write_pattern(ours.at, bytes, 52);
  const int fd = export_fd(memory.handle);
  const CUmemGenericAllocationHandle imported = import_fd(fd);
  record(52, std::string("in the exporting process the import's handle value is ") +
                 (imported == memory.handle ? "the same" : "another"));
  {
    mapped there(theirs.at, bytes, imported);
    ASSERT_EQ(close(fd), 0);
    EXPECT_EQ(grant(theirs.at, bytes), CUDA_SUCCESS);
    EXPECT_TRUE(holds_pattern(theirs.at, bytes, 52));
    write_pattern(theirs.at, bytes, 53);
    EXPECT_TRUE(holds_pattern(ours.at, bytes, 53)) << "it is the same memory, not a copy";
  }
  EXPECT_EQ(cu().MemRelease(imported), CUDA_SUCCESS);
}

TEST_F(share, a52_also_in_another_process) {
  if (in_child()) {
    const int fd = child_number("FD");
    ASSERT_GE(fd, 0);
    const CUmemGenericAllocationHandle imported = import_fd(fd);
    reserved range(bytes);
    {
      mapped there(range.at, bytes, imported);
      ASSERT_EQ(close(fd), 0);
      EXPECT_EQ(cu().MemRelease(imported), CUDA_SUCCESS);
      EXPECT_EQ(grant(range.at, bytes), CUDA_SUCCESS);
      EXPECT_TRUE(holds_pattern(range.at, bytes, 54));
      write_pattern(range.at, bytes, 55);
      MUST(cu().CtxSynchronize());
    }
    record(52, "another process read and wrote the memory after it had closed the descriptor");
    return;
  }
  physical memory(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  reserved range(bytes);
  mapped here(range.at, memory);
  MUST(grant(range.at, bytes));
  write_pattern(range.at, bytes, 54);
  const int fd = inheritable(export_fd(memory.handle));
  child importer({{"FD", std::to_string(fd)}});
  close(fd);
  importer.join();
  EXPECT_TRUE(holds_pattern(range.at, bytes, 55)) << "what the importer wrote";
}

TEST_F(share, a53_the_exporters_release_leaves_the_importer_its_data) {
  if (in_child()) {
    const int socket = child_number("SOCKET");
    const int fd = receive_fd(socket);
    ASSERT_GE(fd, 0);
    const CUmemGenericAllocationHandle imported = import_fd(fd);
    close(fd);
    reserved range(bytes);
    {
      mapped there(range.at, bytes, imported);
      EXPECT_EQ(cu().MemRelease(imported), CUDA_SUCCESS);
      EXPECT_EQ(grant(range.at, bytes), CUDA_SUCCESS);
      say(socket);                // mapped: the exporter may let go
      ASSERT_TRUE(hear(socket));  // it has
      EXPECT_TRUE(holds_pattern(range.at, bytes, 56));
      record(53, "contents intact after the exporter unmapped and released");
    }
    return;
  }
  socket_pair sockets;
  child importer({{"SOCKET", std::to_string(sockets.theirs)}});
  sockets.theirs_is_passed_on();
  {
    physical memory(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    reserved range(bytes);
    mapped here(range.at, memory);
    MUST(grant(range.at, bytes));
    write_pattern(range.at, bytes, 56);
    MUST(cu().CtxSynchronize());
    const int fd = export_fd(memory.handle);
    send_fd(sockets.ours(), fd);
    close(fd);
    EXPECT_TRUE(hear(sockets.ours())) << "the importer gave up";
  }
  // New memory that would be the importer's, were the release to take it away.
  physical other(bytes);
  reserved elsewhere(bytes);
  mapped there(elsewhere.at, other);
  MUST(grant(elsewhere.at, bytes));
  write_pattern(elsewhere.at, bytes, 57);
  MUST(cu().CtxSynchronize());
  // An importer that gave up has closed its end; join() then says why.
  const char byte = 's';
  send(sockets.ours(), &byte, 1, MSG_NOSIGNAL);
  importer.join();
}

TEST_F(share, the_exporters_death_leaves_the_importer_its_data) {
  if (in_child()) {
    physical memory(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    reserved range(bytes);
    mapped here(range.at, memory);
    MUST(grant(range.at, bytes));
    write_pattern(range.at, bytes, 58);
    MUST(cu().CtxSynchronize());
    const int fd = export_fd(memory.handle);
    send_fd(child_number("SOCKET"), fd);
    close(fd);
    return;
  }
  int fd = -1;
  {
    socket_pair sockets;
    child exporter({{"SOCKET", std::to_string(sockets.theirs)}});
    sockets.theirs_is_passed_on();
    fd = receive_fd(sockets.ours());
    exporter.join();
  }
  ASSERT_GE(fd, 0);
  const CUmemGenericAllocationHandle imported = import_fd(fd);
  close(fd);
  reserved range(bytes);
  {
    mapped there(range.at, bytes, imported);
    EXPECT_EQ(grant(range.at, bytes), CUDA_SUCCESS);
    EXPECT_TRUE(holds_pattern(range.at, bytes, 58));
  }
  EXPECT_EQ(cu().MemRelease(imported), CUDA_SUCCESS);
}

TEST_F(share, import_of_a_foreign_file_is_refused) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_NE(cu().MemImportFromShareableHandle(
                &handle, reinterpret_cast<void *>(static_cast<std::uintptr_t>(ends[0])),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace stillmap::conformance
