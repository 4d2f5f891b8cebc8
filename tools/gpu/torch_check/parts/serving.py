"""Serving: requests with log-normal lengths arrive and end; their caches grow by concatenation."""

import models
from requests_served import Server

WEIGHT = 12
COLUMNS = (
    "allocator", "steps", "tokens_per_s", "median_seconds", "p95_seconds", "peak_allocated_bytes",
    "peak_reserved_bytes", "peak_of_device_bytes", "utilisation",
)  # fmt: skip
FULL = {"at_once": 16, "most_prompt": 4096, "most_output": 512}
TINY = {"at_once": 3, "most_prompt": 48, "most_output": 12}
WARM_UP = 10


def measure(lab):
    lab.compare([{"load": "lognormal"}])


def server(torch, device, tiny, load):
    size = models.size_of("served", tiny)
    model = models.llama(torch, size, device)
    return Server(torch, device, model, size["vocabulary"], **load)


def work(bench):
    served = server(bench.torch, bench.device, bench.tiny, TINY if bench.tiny else FULL)
    for _ in range(WARM_UP):
        served.round()
        bench.gauge.sample()
    before = served.tokens
    figures = bench.timed(served.round)
    tokens = served.tokens - before
    return {**figures, "tokens": tokens, "tokens_per_s": tokens / figures["timed_seconds"]}
