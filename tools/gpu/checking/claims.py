"""Compares the project's performance claims with the measured results."""
import re


class Claim:
    """One promise. value: a number, or None where it was not measured."""

    def __init__(self, what, limit, value, holds, form="%.3g"):
        self.what = what
        self.limit = limit
        self.value = value
        self.holds = holds if value is not None else None
        self.form = form

    def text(self):
        return self.form % self.value if self.value is not None else "not measured"

    def verdict(self):
        return {True: "yes", False: "**no**", None: ""}[self.holds]


def cases(gathered, job_name):
    """Google Benchmark's cases of a program; the newest run of it."""
    found = []
    for part in gathered:
        for job in part["jobs"]:
            if job["name"] == job_name and job["kind"] == "benchmark" and job["results"]:
                found = [c for c in job["results"].get("benchmarks", [])
                         if not c.get("error_occurred") and not c.get("skipped")]
    return found


def number(found, pattern, key):
    """Of the first case whose name matches; None where there is none, or no such number."""
    for case in found:
        if re.search(pattern, case["name"]):
            value = case.get(key)
            return value if isinstance(value, (int, float)) else None
    return None


def ratio(a, b):
    return a / b if a is not None and b else None


def at_most(what, value, limit, form="%.3g"):
    return Claim(what, "at most " + form % limit, value, value is not None and value <= limit, form)


def at_least(what, value, limit, form="%.3g"):
    return Claim(what, "at least " + form % limit, value, value is not None and value >= limit, form)


def growth(gathered):
    calls, grown = cases(gathered, "driver_bench"), cases(gathered, "growth_bench")
    page = number(grown, r"^grow_by_one_page/idle/MiB:1024/", "median_us")
    driver = [number(calls, r"^%s/MiB:2/" % call, "real_time") for call in ("MemMap", "MemSetAccess")]
    own = sum(driver) if None not in driver else None
    large = r"^grow_buffer/backed_%s/GiB:32/step_MiB:1024/"
    in_place = number(grown, large % "in_place_warm", "real_time")
    copying = number(grown, large % "copying", "real_time")
    peaks = [number(grown, large % kind, "peak_MiB") for kind in ("in_place_warm", "copying")]
    return [
        at_most("growing by 2 MiB from a warm pool, of the driver's own map and set-access",
                ratio(page, own), 1.15),
        at_most("growing inside what is mapped ahead, microseconds",
                number(grown, r"^grow_while_computing/warm/ahead_MiB:16/", "median_us"), 1),
        at_least("growing to 32 GiB, times faster than copying", ratio(copying, in_place), 50),
        at_most("and of its peak memory", ratio(*peaks), 0.5),
    ]


def checkpoint(gathered):
    suspends, handed = cases(gathered, "suspend_bench"), cases(gathered, "handoff_bench")
    moved = cases(gathered, "migration_bench")
    return [
        at_least("suspending, of the rate of pinned copies",
                 number(suspends, r"^side_by_side/pinned", "suspend_of_engine"), 0.95),
        at_least("resuming, of that rate",
                 number(suspends, r"^side_by_side/pinned", "resume_of_engine"), 0.95),
        at_least("digests, of the bandwidth of copies in device memory",
                 number(cases(gathered, "digest_bench"), r"^digests/chunk_KiB:2048",
                        "of_copy_bandwidth"), 0.75),
        at_most("handing over 100 GiB, milliseconds",
                number(handed, r"^handoff/100_GiB", "real_time"), 100),
        at_most("and bytes copied", number(handed, r"^handoff/100_GiB", "copied_bytes"), 0, "%d"),
        at_most("pause of a live migration over loopback, milliseconds",
                number(moved, r"^migration/loopback/", "pause_ms"), 300),
    ]


CASE = ("model", "lengths", "checkpointing", "graph")


def side_by_side(rows, key):
    """A dictionary by allocator for each case in which Stillmap has the number."""
    found = {}
    for row in rows:
        if not row.get("error") and isinstance(row.get(key), (int, float)):
            case = tuple(str(row.get(label)) for label in CASE)
            found.setdefault(case, {})[row.get("allocator")] = row[key]
    return [of for of in found.values() if "stillmap" in of]


def worst(values, pick):
    values = [v for v in values if v is not None]
    return pick(values) if values else None


def against_torch(files):
    """Of the worst case, each time."""
    training = files.get("torch_training", {}).get("rows", [])
    used, steps = side_by_side(training, "utilisation"), side_by_side(training, "median_seconds")
    # With texts of many lengths the steps that are timed may be the first of their length.
    steady = [row["calls_per_step"] for row in training
              if row.get("allocator") == "stillmap" and row.get("lengths") == "fixed"
              and row.get("calls_per_step")]
    largest = side_by_side(files.get("torch_largest_batch", {}).get("rows", []), "largest")
    others = [max(v for k, v in of.items() if k != "stillmap") for of in largest if len(of) > 1]
    return [
        at_least("utilisation in training, where expandable segments has less",
                 worst([of["stillmap"] for of in used if of.get("expandable", 1) < 0.98], min), 0.98),
        at_least("utilisation, less that of expandable segments",
                 worst([of["stillmap"] - of["expandable"] for of in used if "expandable" in of], min),
                 0, "%.4f"),
        at_most("time of a step, of that with PyTorch's default",
                worst([ratio(of["stillmap"], of.get("default")) for of in steps], max), 1.01),
        at_most("pages made, moved and given back, and waits, in a step with texts of one length",
                worst([sum(of.values()) for of in steady], max), 0),
        at_least("largest batch, of the best of the others",
                 ratio(largest[0]["stillmap"], others[0]) if others else None, 1),
    ]


def all_of(gathered, files):
    return growth(gathered) + checkpoint(gathered) + against_torch(files)
