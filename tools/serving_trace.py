#!/usr/bin/env python3
"""Converts a trace of an inference server's requests into a trace of its KV cache.

The requests come from a CSV with a time, prompt tokens and generated tokens (the columns of the
Azure LLM inference traces), from a JSON-lines file with timestamp, input_length and output_length
(those of Mooncake), or are drawn at random where no file is given. The server batches continuously:
a request is admitted when there is memory for its prompt, its cache is one block for the prompt and
then one for each --chunk tokens, each decoding step gives every running request a token, and all
blocks of a request are freed when it ends. Each step also takes and frees its activations.

    tools/serving_trace.py requests.csv --into serving.trace.zst
    tools/serving_trace.py --requests 300 --seed 1 --into serving.trace.zst
"""

import argparse
import csv
import datetime
import json
import random
import shutil
import subprocess
import sys


def read_requests(path):
    """(seconds, prompt tokens, generated tokens), in the order of arrival."""
    found = []
    with open(path, encoding="utf-8") as lines:
        if path.endswith(".jsonl"):
            for number, line in enumerate(lines, 1):
                try:
                    r = json.loads(line)
                    found.append(
                        (r["timestamp"] / 1000, int(r["input_length"]), int(r["output_length"]))
                    )
                except (ValueError, KeyError, TypeError) as e:
                    sys.exit(f"{path}:{number}: no request: {e!r}")
        else:
            rows = csv.reader(lines)
            next(rows, None)  # the names of the columns
            for row in rows:
                try:
                    when = datetime.datetime.fromisoformat(row[0][:26]).timestamp()
                    found.append((when, int(row[1]), int(row[2])))
                except (ValueError, IndexError) as e:
                    sys.exit(f"{path}:{rows.line_num}: no request: {e!r}")
    found.sort()
    return [(when - found[0][0], *rest) for when, *rest in found]


def draw_requests(count, seed, rate=5.0):
    dice, when, drawn = random.Random(seed), 0.0, []
    for _ in range(count):
        when += dice.expovariate(rate)
        prompt = min(14000, max(8, int(dice.lognormvariate(6.7, 1.0))))
        drawn.append((when, prompt, min(1500, max(2, int(dice.lognormvariate(5.0, 0.8))))))
    return drawn


class Server:
    """Times are of a large GPU with an 8B model, roughly: they decide only who runs beside whom."""

    STEP_SECONDS, PREFILL_TOKENS_A_SECOND = 0.02, 20000

    def __init__(self, options):
        self.lines, self.next_id, self.live, self.peak = [], 0, 0, 0
        self.token, self.chunk = options.token_bytes, options.chunk
        self.activation, self.budget = options.activation_bytes, options.cache_gib * 2**30
        self.running = []  # [tokens left, tokens that fit, tokens now, ids of blocks]

    def allocate(self, bytes_):
        self.lines.append(f"a,{self.next_id},{bytes_},0")
        self.next_id += 1
        self.live += bytes_
        self.peak = max(self.peak, self.live)
        return self.next_id - 1, bytes_

    def free(self, block):
        self.lines.append(f"f,{block[0]}")
        self.live -= block[1]

    def scratch(self, tokens):
        self.free(self.allocate(tokens * self.activation))

    def step(self):
        self.scratch(len(self.running))
        for request in list(self.running):
            if request[2] == request[1]:
                request[3].append(self.allocate(self.chunk * self.token))
                request[1] += self.chunk
            request[2] += 1
            request[0] -= 1
            if request[0] == 0:
                self.running.remove(request)
                for block in request[3]:
                    self.free(block)

    def serve(self, requests):
        now, waiting = 0.0, list(reversed(requests))
        while waiting or self.running:
            if not self.running and waiting[-1][0] > now:
                now = waiting[-1][0]
            while waiting and waiting[-1][0] <= now:
                _, prompt, answer = waiting[-1]
                most = (prompt + answer + self.chunk) * self.token
                promised = sum((r[0] + r[2] + self.chunk) * self.token for r in self.running)
                if self.running and promised + most > self.budget:
                    break
                waiting.pop()
                cache = self.allocate(prompt * self.token)
                self.scratch(prompt)
                self.running.append([max(1, answer), prompt, prompt, [cache]])
                now += prompt / self.PREFILL_TOKENS_A_SECOND
            self.step()
            now += self.STEP_SECONDS


def save(path, text, level=19):
    if not path.endswith(".zst"):
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
    elif shutil.which("zstd"):
        subprocess.run(["zstd", "-q", f"-{level}", "-f", "-o", path], input=text.encode(), check=True)
    else:
        sys.exit("no `zstd` program: name a file without .zst")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="the requests: .csv or .jsonl; none: drawn")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N (drawn: 300)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of those drawn")
    parser.add_argument("--token-bytes", type=int, default=131072, metavar="N",
                        help="cache of a token (default 128 KiB: 8B parameters, bfloat16)")  # fmt: skip
    parser.add_argument("--chunk", type=int, default=64, metavar="N", help="tokens (default 64)")
    parser.add_argument("--activation-bytes", type=int, default=57344, metavar="N",
                        help="scratch memory of a token in a step (default 56 KiB)")  # fmt: skip
    parser.add_argument("--cache-gib", type=int, default=40, metavar="N", help="default 40")
    parser.add_argument("--into", required=True, metavar="FILE", help=".trace or .trace.zst")
    options = parser.parse_args()
    if options.file:
        requests = read_requests(options.file)[: options.requests]
        origin = f"{len(requests)} requests of a file"
    else:
        requests = draw_requests(options.requests or 300, options.seed)
        origin = f"{len(requests)} requests drawn with seed {options.seed}"
    server = Server(options)
    server.serve(requests)
    head = ["# stillmap-trace v1", f"# KV cache of an inference server: tools/serving_trace.py, {origin}"]
    save(options.into, "\n".join(head + server.lines) + "\n")
    print(f"{options.into}: {origin}, {len(server.lines)} lines, peak {server.peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
