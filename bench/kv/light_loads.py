"""Requests of a service with little to do, in the form of the Azure traces, for `kv_bench`: few tokens live at a time, so
that what an arena holds beside them shows.

    python3 bench/kv/light_loads.py code > code.csv
"""

from __future__ import annotations

import datetime
import random
import sys
from collections.abc import Callable

SECONDS = 1800
Request = tuple[float, float, float]  # arrival in seconds, prompt tokens, generated tokens


def code(random_: random.Random) -> list[Request]:
    """Code completion: long prompts, a few tokens generated."""
    out: list[Request] = []
    time = 0.0
    while time < SECONDS:
        time += random_.expovariate(2.5 if time // 60 % 3 else 6)
        out.append((time, min(7500, max(3, random_.lognormvariate(7.2, 0.9))),
                    min(1900, max(1, random_.lognormvariate(2.6, 1.0)))))
    return out


def burst(random_: random.Random) -> list[Request]:
    """Up to 40 requests at once, and pauses."""
    out: list[Request] = []
    time = 0.0
    while time < SECONDS:
        time += 60 * random_.random() if random_.random() < 0.02 else random_.expovariate(0.5)
        out.extend((time + random_.random() / 2, min(8000, max(5, random_.lognormvariate(5.5, 1.2))),
                    min(3000, max(1, random_.lognormvariate(5, 1.1))))
                   for _ in range(random_.choice([1, 1, 1, 2, 5, 40])))
    return out


def few(random_: random.Random) -> list[Request]:
    """A request in ten seconds, with a long answer."""
    out: list[Request] = []
    time = 0.0
    while time < SECONDS:
        time += random_.expovariate(0.1)
        out.append((time, max(10, random_.lognormvariate(4, 1)), max(50, random_.lognormvariate(6.5, 0.8))))
    return out


LOADS: dict[str, Callable[[random.Random], list[Request]]] = {"code": code, "burst": burst, "few": few}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in LOADS:
        print(f"usage: light_loads.py {'|'.join(LOADS)}", file=sys.stderr)
        return 2
    print("TIMESTAMP,ContextTokens,GeneratedTokens")
    begin = datetime.datetime(2026, 1, 1)
    for time, prompt, generated in sorted(LOADS[sys.argv[1]](random.Random(1))):
        at = begin + datetime.timedelta(seconds=time)
        print(f"{at:%Y-%m-%d %H:%M:%S.%f},{int(prompt)},{int(generated)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
