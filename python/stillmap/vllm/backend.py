"""The sleep mode backend `stillmap`. vLLM imports it at the first sleep of an engine that selected it."""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

from .allocator import StillmapAllocator

# Kept at every level; weights only at level 1 (as vLLM's own backend does).
_KEPT = ("runtime", "cudagraph")


class StillmapBackend(SleepModeBackend):
    """Suspends and resumes the tags of StillmapAllocator.

    What differs from vLLM's own: contents may go to a file, checked when they come back; a tag is suspended in
    one operation, with its copies on several streams, and a failure leaves everything as it was; a wake-up that
    fails for want of memory can be called again.
    """

    def suspend(self, level: int = 1) -> None:
        if level not in (1, 2):
            raise ValueError(f"stillmap.vllm: sleep level {level} is unknown; there are 1 and 2")
        keep = ("weights", *_KEPT) if level == 1 else _KEPT
        StillmapAllocator.get_instance().sleep(keep)
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        self._state = "RESUMING"
        try:
            StillmapAllocator.get_instance().wake_up(tags)
        except BaseException:
            self._state = "SUSPENDED"
            raise
        self._state = "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        StillmapAllocator.get_instance().discard(tags)
        self._state = "SUSPENDED"

    @classmethod
    def is_supported(cls) -> bool:
        from vllm.platforms import current_platform

        return bool(current_platform.is_cuda())

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True  # they allocate outside of the tags, and keep running

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True  # the process and its modules stay

    # False, as by default: preserves_graphs_with_communicators, because NCCL may have registered memory of a tag,
    # and a registration is of physical pages; supports_durable_storage, because the file of a suspended tag ends
    # with the process.
