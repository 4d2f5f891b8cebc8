"""Stillmap: GPU memory whose addresses stay while its pages come, go and move.

docs/python.md is the tour. `import stillmap` needs no GPU and opens none: the first call for a device
does. Sizes are bytes. A stream is None (the legacy default stream), a handle as an integer, or a stream
of another library (see stream_handle). No call waits with the GIL held.
"""

from ._native import (
    BusyError,
    CachingAllocator,
    CancelledError,
    CorruptError,
    DeviceLostError,
    Error,
    InvalidArgumentError,
    MemoryMap,
    NotSupportedError,
    OutOfMemoryError,
    Restored,
    device_count,
    device_info,
    forget,
    last_error,
    memory_map,
    plugin_path,
    restore,
    resume,
    snapshot,
    stats,
    stream_handle,
    suspend,
    suspended,
    version,
)

__version__ = version()
