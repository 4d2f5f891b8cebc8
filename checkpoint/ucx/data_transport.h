// Data channels of a migration over UCX: InfiniBand and RoCE, shared memory, plain TCP. docs/ucx.md
//
// UCX neither encrypts nor authenticates: whoever can read or write the network can read the contents of
// the task, and can end the migration. Contents that were changed do not pass its seal. Use it inside a
// network that you trust, for send_options::data_connector (and that of control::server_options) and
// receive_options::data_acceptor only: the control channel, which decides who owns the task, stays on TLS.
//
// A channel that fails or times out is closed: its peer's calls fail, too.
// libucp is loaded with the first of these objects, and stays. UCX reads variables of the environment (UCX_TLS, UCX_NET_DEVICES, UCX_LOG_LEVEL, ...), and handles
// fatal signals (UCX_HANDLE_ERRORS). Do not fork() while one of these objects exists.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::ucx {

struct connection_options {
  // The transports that UCX may choose from, in its words: "rc,sm,self", "tcp", "shm". Empty: what the
  // variable UCX_TLS says, or else all.
  std::string transports;
};

// Connects to data acceptors named "ucx". Its transports have a context of UCX each, which lives as long as
// they or one of their channels.
// Errors: not_supported (UCX is not installed, or cannot start with these transports; the subject says why).
// Cost:   one context of UCX, which is closed again.
result<std::unique_ptr<migration::data_connector>> create_data_connector(
    const connection_options &options = {});

// Listens at `address`, "[host]:port", over TCP: the ends tell each other there how UCX reaches them. Port 0
// selects a free port, which acceptor::address() returns. Without a host: all addresses of this machine.
// Errors: as create_data_connector(); invalid_argument (malformed address; the host name does not resolve),
//         the system's.
result<std::unique_ptr<migration::data_acceptor>> create_data_acceptor(
    const std::string &address, const connection_options &options = {});

}  // namespace stillmap::ucx
