"""Runs parts one after the other. Each program's results are on disk before the next one starts, because a lent
machine may be taken away at any moment."""
import time

from checking import parts, results, running

REPORT_SECONDS = 15  # of --minutes, for the report at the end


def left_of(part, where, here, out, given):
    """A part's jobs that are still to run, and the results that stay, by name."""
    jobs = part.jobs(here, out, given)
    before = results.of_before(out, part.name, where) if given.minutes else {}
    kept = {job.name: before[job.name] for job in jobs if job.name in before}
    todo = [job for job in jobs if job.name not in kept or not running.is_whole(kept[job.name])]
    # What was never begun first: what was stopped has said something.
    return sorted(todo, key=lambda job: job.name in kept and kept[job.name]["status"] == "out of time"), kept


def run(wanted, where, here, out, given):
    until = time.time() + given.minutes * 60 - REPORT_SECONDS if given.minutes else None
    todo = []
    for part in wanted:
        jobs, kept = left_of(part, where, here, out, given)
        if jobs:
            todo.append((part, jobs, kept))
        else:
            print("check: %s: done before" % part.name, flush=True)
    while todo:
        pace = parts.pace(until - time.time(), [part.seconds for part, _, _ in todo]) if until else 1.0
        part, jobs, kept = todo.pop(0)
        began = time.time()
        print("check: %s, at most %d s" % (part.name, part.seconds * pace), flush=True)
        for job in jobs:
            done = running.run(job, where.environment, out, began + part.seconds * pace, pace)
            if done["status"] != running.NO_TIME or job.name not in kept:
                kept[job.name] = done
            results.write(out, part.name, where, began, list(kept.values()))
            results.pack(out)
