"""Reads the result files of all parts and summarises them."""
import json
import tarfile
import time

FORMAT = "stillmap-check 2"


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def save(path, what):
    """Whole or not at all: a later part reads it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def write(out, name, machine, began, jobs):
    save(out / ("part_%s.json" % name), {
        "format": FORMAT, "part": name, "began": stamp(began),
        "seconds": round(time.time() - began, 1), "machine": machine.about, "jobs": jobs})


def gather(out):
    """The parts that are there, in the order in which they ran."""
    found = []
    for path in out.glob("part_*.json"):
        part = json.loads(path.read_text(encoding="utf-8"))
        if part.get("format") == FORMAT:
            found.append(part)
    return sorted(found, key=lambda p: p["began"])


def of_before(out, name, machine):
    """The jobs of a part that an earlier run has tried on the same machine, commit and driver, by name."""
    for part in gather(out):
        if part["part"] == name and part["machine"] == machine.about:
            return {job["name"]: job for job in part["jobs"]}
    return {}


def extra(out):
    """What programs wrote in forms of their own, by file name."""
    found = {}
    for path in sorted(list(out.glob("costs.json")) + list(out.glob("torch_*.json"))):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
    return found


def write_all(out, gathered):
    save(out / "check.json", dict({"format": FORMAT, "parts": gathered}, **extra(out)))


def pack(out):
    """All of it in one file, for machines that give back only a few."""
    whole = out / "results.tar.gz"
    with tarfile.open(str(whole), "w:gz") as packed:
        for path in sorted(out.iterdir()):
            if path != whole:
                packed.add(str(path), arcname="results/" + path.name)
    return whole


def count(gathered):
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for part in gathered:
        for job in part["jobs"]:
            for key in total:
                total[key] += job[key]
    return total


def summary(count):
    text = "%(passed)d passed, %(failed)d failed" % count
    return text + ", %d skipped" % count["skipped"] if count["skipped"] else text
