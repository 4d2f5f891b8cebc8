// The C interface between the replay and a library made of PyTorch's own CUDA caching allocator,
// which tools/torch_peer/build compiles against an installed PyTorch. Nothing of PyTorch is needed
// to build Stillmap. tools/torch_peer/torch_peer.cpp implements it; tests have one of their own.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Raised with every change of the table below.
#define STILLMAP_TORCH_PEER_VERSION 1u
// The one function that the library exports.
#define STILLMAP_TORCH_PEER_SYMBOL "stillmap_torch_peer_table"

#ifdef __cplusplus
extern "C" {
#endif

// What the functions return.
enum stillmap_torch_peer_code {
  STILLMAP_TORCH_PEER_OK = 0,
  STILLMAP_TORCH_PEER_OUT_OF_MEMORY = 1,
  STILLMAP_TORCH_PEER_FAILED = 2
};

typedef struct stillmap_torch_peer_stats {
  uint64_t reserved_bytes;       // device memory it holds now
  uint64_t peak_reserved_bytes;  // since open()
  uint64_t retries;  // requests tried again after cached memory was released; since open()
} stillmap_torch_peer_stats;

// Requires: the device's primary context is current during every call. One thread calls.
typedef struct stillmap_torch_peer {
  uint32_t version;   // STILLMAP_TORCH_PEER_VERSION
  const char *torch;  // PyTorch's version, "2.8.0"

  // The process has one such allocator: open() empties it and applies `settings`, in the syntax of
  // PYTORCH_CUDA_ALLOC_CONF.
  int (*open)(int device, const char *settings);
  // Releases all cached memory.
  int (*close)(void);
  // Streams are the driver's handles.
  int (*allocate)(void **out, size_t bytes, void *stream);
  int (*free)(void *at);
  int (*record_stream)(void *at, void *stream);
  int (*stats)(stillmap_torch_peer_stats *out);
  // Why the last call did not return OK; one line, valid until the next call.
  const char *(*last_error)(void);
} stillmap_torch_peer;

typedef const stillmap_torch_peer *(*stillmap_torch_peer_table_function)(void);

#ifdef __cplusplus
}
#endif
