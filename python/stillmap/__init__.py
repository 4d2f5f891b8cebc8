"""Stillmap: GPU memory whose addresses stay while its pages come, go and move.

docs/python.md is the tour. `import stillmap` needs no GPU and opens none: the first call for a device
does. Sizes are bytes. A stream is None (the legacy default stream), a handle as an integer, or a stream
of another library (see stream_handle). No call waits, or calls a driver, with the GIL held.
"""

from ._native import (
    BusyError,
    CachingAllocator,
    CancelledError,
    CorruptError,
    DeviceLostError,
    DeviceVector,
    Error,
    GrowableBuffer,
    InvalidArgumentError,
    MemoryMap,
    NotSupportedError,
    OutOfMemoryError,
    Restored,
    Timeline,
    device_count,
    device_info,
    forget,
    last_error,
    memory_map,
    plugin_path,
    replay,
    resume,
    stats,
    stream_handle,
    suspend,
    suspended,
    trim,
    version,
)
from ._progress import restore, snapshot
from ._recording import Recording, record, timeline

__version__ = version()
__all__ = [
    "BusyError",
    "CachingAllocator",
    "CancelledError",
    "CorruptError",
    "DeviceLostError",
    "DeviceVector",
    "Error",
    "GrowableBuffer",
    "InvalidArgumentError",
    "MemoryMap",
    "NotSupportedError",
    "OutOfMemoryError",
    "Recording",
    "Restored",
    "Timeline",
    "device_count",
    "device_info",
    "forget",
    "last_error",
    "memory_map",
    "plugin_path",
    "record",
    "replay",
    "restore",
    "resume",
    "snapshot",
    "stats",
    "stream_handle",
    "suspend",
    "suspended",
    "timeline",
    "trim",
    "version",
]
