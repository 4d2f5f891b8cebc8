// The default streams of threads (CU_STREAM_PER_THREAD, --default-stream per-thread). That handle
// names another stream in each thread. Here each of these streams has a key of its own: a stream_ref
// that equals no stream's handle, and must not reach the driver. Internal.
// docs/allocator_streams.md#default-streams-of-threads
#pragma once

#include "stillmap/vmm/stream.h"

namespace stillmap::thread_stream {

// `s` itself; for CU_STREAM_PER_THREAD, the key of the calling thread's stream.
stream_ref key_of(stream_ref s);

// What to name to the driver, on the calling thread, for a key or a stream. Another thread's default
// stream has no name here. The legacy stream stands for it: it waits for all blocking streams, and
// default streams are blocking. Source: CUDA driver API, "Stream synchronization behavior".
stream_ref handle_of(stream_ref key);

// For reports: CU_STREAM_PER_THREAD for a key.
stream_ref reported(stream_ref key);

// Whether it is the key of another thread's stream.
bool of_another_thread(stream_ref key);

// Whether it is the key of a thread that has ended. The driver destroys the stream, and still
// completes its work.
bool thread_ended(stream_ref key);

}  // namespace stillmap::thread_stream
