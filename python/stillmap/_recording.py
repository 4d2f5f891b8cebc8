"""Recording the requests of allocators as a trace, for replay(), timeline() and `stillmap trace`."""

import os

from . import _native

_VARIABLE = "STILLMAP_RECORD"  # read by allocators that C code makes, as PyTorch's plug-in does


class Recording:
    """A trace that is being written. A context manager: it ends with stop()."""

    def __init__(self, path):
        self._given = os.fspath(path)
        self.path = _native._open_recording(self._given)
        """The file: the one asked for, or, where that one existed, its name with the process id."""
        self._before = os.environ.get(_VARIABLE)
        _native._record_new_allocators_to(self._given)
        os.environ[_VARIABLE] = self._given

    def flush(self):
        """Writes all requests so far to the file. They are also written while the program runs."""
        _native._flush_recording(self._given)

    def stop(self):
        """Allocators that are created from now on are not recorded. Those that are recorded go on."""
        self.flush()
        if os.environ.get(_VARIABLE) != self._given:
            return  # stopped already, or another recording has begun
        _native._record_new_allocators_to("")
        if self._before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = self._before

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()


def record(path):
    """Records the requests of all allocators that are created from now on, as a trace.

    Applies to CachingAllocator and to the allocators of the PyTorch plug-in, in this process and in
    those that it starts. A block is freed in the trace where the program freed it. An existing file
    is kept: see Recording.path. Raises OSError. Cost: a lock and a line of text for each request.
    """
    return Recording(path)


def timeline(recording, allocators=("stillmap", "segments", "segments-expanding"), *, capacity=None,
             iterations=None, points=800, device=0):
    """Memory over a run: what the program had allocated, and what allocators hold for it. A notebook draws it.

    The requests are replayed on one allocator after the other. recording: a Recording, or what replay() takes.
    capacity: bytes of device memory; a curve ends where they do not suffice. points: of a curve, at most.
    Raises InvalidArgumentError (not a trace, an unknown allocator), OSError.
    """
    if isinstance(recording, Recording):
        recording.flush()
        recording = recording.path
    return _native._timeline(recording, list(allocators), capacity, iterations, points, device)
