"""Runs one program, shows its progress, and reads its results; a program that is stopped keeps the
results it had written. Its output is in NAME.log."""
import json
import os
import re
import signal
import subprocess
import time


NO_TIME = "not begun for want of time"


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_benchmarks(path):
    """Google Benchmark's report; of one that was cut short the cases that are whole."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for ending in ("", "]}"):
        try:
            return json.loads(text.rstrip().rstrip(",") + ending)
        except ValueError:
            continue
    return None


def read_log_of_tests(text):
    """What GoogleTest's report would say, of a program that did not live to write it. A case that was
    running has failed."""
    cases = {}
    for result, name in re.findall(r"^\[ *(RUN|OK|FAILED|SKIPPED) *\] ([^\s.]+\.[^\s,]+)", text, re.M):
        suite, of_suite = name.split(".", 1)
        case = {"classname": suite, "name": of_suite, "status": "RUN", "result": "COMPLETED"}
        if result == "SKIPPED":
            case["result"] = "SKIPPED"
        elif result != "OK":
            case["failures"] = [{"failure": "it was running" if result == "RUN" else "see the log"}]
        cases[name] = case
    return {"testsuites": [{"testsuite": list(cases.values())}]} if cases else None


def counts_of_tests(found):
    """GoogleTest's report: how many passed, failed and were skipped; what failed and how it began."""
    cases = [c for s in found.get("testsuites", []) for c in s.get("testsuite", [])]
    ran = [c for c in cases if c.get("status") != "NOTRUN"]
    failed = ["%s.%s: %s" % (c["classname"], c["name"], " ".join(
        c["failures"][0].get("failure", "").split())[:300]) for c in ran if c.get("failures")]
    skipped = sum(c.get("result") == "SKIPPED" for c in ran)
    return len(ran) - len(failed) - skipped, failed, skipped


def counts_of_benchmarks(found):
    """Google Benchmark's report. A case that says why it cannot run is skipped, not failed."""
    cases = found.get("benchmarks", [])
    unable = sum(bool(c.get("error_occurred") or c.get("skipped")) for c in cases)
    return len(cases) - unable, [], unable


def end(process):
    """With what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wait(process, seconds, name):
    """The exit status; None when time is up, and then nothing of it is left."""
    began = told = time.time()
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            pass
        except BaseException:
            end(process)
            raise
        now = time.time()
        if now - began > seconds:
            end(process)
            return None
        if now - told > 30:
            told = now
            print("check: %s: %d s" % (name, now - began), flush=True)


def is_whole(done):
    """Whether nothing is left to do of a job: it ended by itself, well or not, or cannot run here."""
    return done["status"] not in ("out of time", NO_TIME)


def run(job, environment, out, until, pace=1.0):
    """A dictionary of what came of it. `until`: when its part is over. `pace`: what of its seconds it may take;
    where that is not all of them, a program that is stopped has not failed."""
    done = {"name": job.name, "kind": job.kind, "passed": 0, "failed": 0, "skipped": 0, "why": [],
            "unable": "", "results": None, "seconds": 0}
    left = min(job.seconds * pace, until - time.time())
    unable = job.absent or ("the part's time was over" if left < 1 else "")
    if unable:
        done.update(skipped=1, status="not begun" if job.absent else NO_TIME, unable=unable)
        print("check:   %s: not begun: %s" % (job.name, unable), flush=True)
        return done
    report, log = out / (job.name + ".json"), out / (job.name + ".log")
    command = [word.replace("{seconds}", "%d" % max(1, left * 5 / 6)) for word in job.command]
    if job.kind != "json":
        report.unlink() if report.exists() else None
        flag = "--gtest_output=json:" if job.kind == "tests" else "--benchmark_out="
        command.append(flag + str(report))
    began = time.time()
    with open(log, "wb") as text:
        try:
            process = subprocess.Popen(command, env=dict(environment, **job.environment), stdout=text,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            done.update(failed=1, status="does not start", why=[str(error)])
            print("check:   %s: %s" % (job.name, error), flush=True)
            return done
        status = wait(process, left, job.name)
    done["seconds"] = round(time.time() - began, 1)
    done["status"] = "out of time" if status is None else status
    said = log.read_text("utf-8", "replace")
    found = None
    if job.kind == "tests":
        found = read_json(report) or read_log_of_tests(said)
    elif job.kind == "benchmark":
        found = read_benchmarks(report)
    if found is not None:
        done["results"] = found
        count = counts_of_tests if job.kind == "tests" else counts_of_benchmarks
        done["passed"], done["why"], done["skipped"] = count(found)
        done["failed"] = len(done["why"])
        if report.exists():
            report.unlink()  # it is in the part's file
    elif job.kind == "json" and status == 0:
        done["passed"] = 1
    nothing = done["passed"] == 0 and done["skipped"] == 0
    if status is None and pace < 1:
        done["skipped"] += 1
        done["unable"] = "stopped after %d s of at most %d; what it had measured is kept" % (left, job.seconds)
    elif status is None or (done["failed"] == 0 and (status != 0 or nothing)):
        done["failed"] += 1
        lines = said.strip().splitlines()
        done["why"].append("ended with %s: %s" % (
            "status %d" % status if status is not None else "its time",
            lines[-1] if lines else "without a word"))
    print("check:   %s: %d passed, %d failed, %d skipped, %.0f s" % (
        job.name, done["passed"], done["failed"], done["skipped"], done["seconds"]), flush=True)
    return done
