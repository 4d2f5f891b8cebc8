"""The CPU time of a training step with each allocator, while kernels are skipped: what allocation costs is all that
differs. Prints a table. The machine must have nothing else to do.

    torch_step_time.py [ROUNDS]        on hostcuda with kernels=skip, or on a GPU

Each round starts a process for each allocator, in turn, so that what the machine does besides meets all of them.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import transformer

STEPS, WARM_UP = 60, 20


def measure(allocator, lengths):
    """Microseconds of CPU of the process (all its threads) for each step, after the warm-up."""
    import torch
    with transformer.choose(allocator):
        training = transformer.Training(lengths)
        times = []
        for _ in range(WARM_UP + STEPS):
            began = time.process_time_ns()
            training.step()
            times.append((time.process_time_ns() - began) / 1000)
        torch.cuda.synchronize()
        return times[WARM_UP:]


def main():
    if len(sys.argv) == 3:
        transformer.print_and_leave(measure(*sys.argv[1:]))
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    # Other load makes steps slower, never faster: the least of them is the least disturbed.
    print("| lengths | allocator | least us of CPU a step | median | medians of each round |\n|---|---|---|---|---|")
    for lengths in ("fixed", "random"):
        medians = {name: [] for name in transformer.ALLOCATORS}
        least = dict.fromkeys(transformer.ALLOCATORS, float("inf"))
        for _ in range(rounds):
            for name, variables in transformer.ALLOCATORS.items():
                done = subprocess.run([sys.executable, __file__, name, lengths], env={**os.environ, **variables},
                                      stdout=subprocess.PIPE, text=True, check=True)
                times = json.loads(done.stdout.splitlines()[-1])
                medians[name].append(statistics.median(times))
                least[name] = min(least[name], *times)
        for name, found in medians.items():
            print("| %s | %s | %.0f | %.0f | %s |" % (lengths, name, least[name], statistics.median(found),
                                                    ", ".join("%.0f" % m for m in found)))


if __name__ == "__main__":
    main()
