// libucp, loaded at run time: a program that is linked with this library and does not use it has neither
// UCX's signal handlers nor its hooks of mmap.
#pragma once

#include <ucp/api/ucp.h>

#include "stillmap/vmm/base/error.h"

namespace stillmap::ucx {

#define STILLMAP_UCX_FUNCTIONS(F) \
  F(ucp_cleanup)                  \
  F(ucp_config_modify)            \
  F(ucp_config_read)              \
  F(ucp_config_release)           \
  F(ucp_ep_close_nbx)             \
  F(ucp_ep_create)                \
  F(ucp_ep_flush_nbx)             \
  F(ucp_init_version)             \
  F(ucp_request_check_status)     \
  F(ucp_request_free)             \
  F(ucp_stream_data_release)      \
  F(ucp_stream_recv_data_nb)      \
  F(ucp_stream_send_nbx)          \
  F(ucp_worker_arm)               \
  F(ucp_worker_create)            \
  F(ucp_worker_destroy)           \
  F(ucp_worker_get_address)       \
  F(ucp_worker_get_efd)           \
  F(ucp_worker_progress)          \
  F(ucp_worker_release_address)   \
  F(ucs_status_string)

struct ucx_functions {
#define STILLMAP_UCX_FUNCTION(name) decltype(&::name) name = nullptr;
  STILLMAP_UCX_FUNCTIONS(STILLMAP_UCX_FUNCTION)
#undef STILLMAP_UCX_FUNCTION
};

// Loads libucp, once. It stays until the process ends.
// Errors: not_supported (it cannot be loaded, or lacks a function; the subject says why).
// Threads: safe.
status load_library();
// Requires: load_library() has succeeded.
const ucx_functions &api() noexcept;

}  // namespace stillmap::ucx
