"""Progress bars for snapshot() and restore()."""

import contextlib
import sys

from . import _native


@contextlib.contextmanager
def _shown(progress, title):
    """The callback for `progress`: None, a callable, or True for a bar on stderr."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with _bar(title) as show:
            yield show
    else:
        yield progress


@contextlib.contextmanager
def _bar(title):
    try:
        from tqdm.auto import tqdm
    except ImportError:
        with _line(title) as show:
            yield show
        return
    with tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024) as bar:

        def show(done, total):
            bar.total = total
            bar.update(done - bar.n)

        yield show


@contextlib.contextmanager
def _line(title):
    """Without tqdm: one line, and only on a terminal."""
    shown = -1

    def show(done, total):
        nonlocal shown
        percent = 100 * done // total if total else 100
        if percent != shown and sys.stderr.isatty():
            shown = percent
            sys.stderr.write("\r%s: %3d %% of %.1f MiB" % (title, percent, total / 2**20))
            sys.stderr.flush()

    yield show
    if shown >= 0:
        sys.stderr.write("\n")


def snapshot(path, tags, *, progress=None, **options):
    with _shown(progress, "snapshot") as show:
        return _native.snapshot(path, tags, progress=show, **options)


def restore(path, *, progress=None, **options):
    with _shown(progress, "restore") as show:
        return _native.restore(path, progress=show, **options)


_BAR = "\nprogress=True shows a bar: tqdm's where it is installed."
snapshot.__doc__ = _native.snapshot.__doc__ + _BAR
restore.__doc__ = _native.restore.__doc__ + _BAR
