"""The device memory that a process uses, as its allocator and as the driver report it."""

import allocators
from figures import ratio

# What of an allocator's account is a call to the driver, or a wait.
STILLMAP_COUNTERS = (
    "growths", "pages_created", "pages_moved", "pages_recalled", "pages_released", "host_waits",
)  # fmt: skip
TORCH_COUNTERS = (
    "num_device_alloc",
    "num_device_free",
    "num_alloc_retries",
    "num_sync_all_streams",
)


class NoGauge:
    """For the processor, whose memory nobody accounts for."""

    def begin(self):
        pass

    def sample(self):
        pass

    def counters(self):
        return None

    def figures(self):
        names = (
            "peak_reserved_bytes",
            "peak_allocated_bytes",
            "utilisation",
            "peak_of_device_bytes",
        )
        return dict.fromkeys(names)


class Gauge:
    """Peaks are those of the whole process, so a process should do one thing only.
    `peak_of_device_bytes` is what the device had less than at the beginning, kernels and libraries
    included, which are the same for all."""

    def __init__(self, torch, allocator, library):
        self.torch, self.allocator, self.library = torch, allocator, library
        torch.cuda.init()
        torch.cuda.synchronize()
        self.begin()

    def begin(self):
        """What the device has lost up to now counts for nothing."""
        self.free_before = self.least_free = self.free()

    def free(self):
        return self.torch.cuda.mem_get_info()[0]

    def sample(self):
        self.least_free = min(self.least_free, self.free())

    def counters(self):
        """Counts that only rise; None where the allocator keeps none (cudaMallocAsync is the
        driver)."""
        if self.allocator == allocators.STILLMAP:
            stats, names = allocators.stillmap_stats(self.library), STILLMAP_COUNTERS
        elif self.allocator == "async":
            return None
        else:
            stats, names = self.torch.cuda.memory_stats(), TORCH_COUNTERS
        return {name: stats[name] for name in names if name in stats}

    def figures(self):
        self.sample()
        if self.allocator == allocators.STILLMAP:
            stats = allocators.stillmap_stats(self.library)
            reserved, allocated = stats.get("committed_peak_bytes"), stats.get("live_peak_bytes")
        else:
            stats = self.torch.cuda.memory_stats()
            reserved = stats.get("reserved_bytes.all.peak")
            allocated = stats.get("allocated_bytes.all.peak")
        return {
            "peak_reserved_bytes": reserved,
            "peak_allocated_bytes": allocated,
            "utilisation": ratio(allocated, reserved),
            "peak_of_device_bytes": self.free_before - self.least_free,
            **self.proof(),
        }

    def proof(self):
        """That the allocator is the one that was asked for: a setting that PyTorch does not know is
        passed over with a warning."""
        said = {"backend": self.torch.cuda.get_allocator_backend()}
        if self.allocator == "expandable":
            settings = self.torch.cuda.memory._snapshot().get("allocator_settings", {})
            said["expandable_segments"] = settings.get("expandable_segments")
        return said
