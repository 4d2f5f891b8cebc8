#!/usr/bin/env python3
"""Prometheus scrapes `stillmap metrics`, and has the figures that `stillmap top` shows.

    tools/check/prometheus.py

The rules of tools/prometheus are checked and tested by promtool. Then two programs that nobody changed run on a
machine of hostcuda, one of them suspended; `stillmap metrics` serves them, Prometheus scrapes it, and the series that
it answers with are compared with `stillmap top --json`. Prometheus is the one in PATH, or Debian's package, unpacked
in .cache. Needs the command and the tests' programs as Bazel builds them.
"""
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

from operated_machine import BUILT, Machine, free_ports, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "tools" / "prometheus"


def find_prometheus():
    """The folder of prometheus and promtool."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return pathlib.Path(shutil.which("prometheus")).parent
    cache = ROOT / ".cache" / "prometheus"
    folder = cache / "usr" / "bin"
    if not (folder / "promtool").exists():
        cache.mkdir(parents=True, exist_ok=True)
        print("prometheus: unpacking Debian's package in .cache/prometheus", file=sys.stderr)
        subprocess.run(["apt-get", "-q", "download", "prometheus"], cwd=cache, check=True, stdout=subprocess.DEVNULL)
        package = max(cache.glob("prometheus_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, cache], check=True)
    return folder


def check_rules(folder, machine):
    for words in (["check", "rules", "stillmap.rules.yml"], ["test", "rules", "stillmap_rules_test.yml"]):
        subprocess.run([folder / "promtool", *words], cwd=RULES, check=True)
    with tempfile.TemporaryDirectory() as temporary:
        file = pathlib.Path(temporary) / "stillmap.prom"
        machine.run("metrics", "--once", "--textfile", file)
        text = file.read_text(encoding="utf-8")
    subprocess.run([folder / "promtool", "check", "metrics"], input=text, text=True, check=True)


def start_prometheus(stack, folder, target):
    data = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
              "rule_files": [str(RULES / "stillmap.rules.yml")],
              "scrape_configs": [{"job_name": "stillmap", "static_configs": [{"targets": [target]}]}]}
    (data / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    port, = free_ports(1)
    log = stack.enter_context((data / "log").open("w"))
    process = subprocess.Popen([folder / "prometheus", f"--config.file={data}/prometheus.yml",
                                f"--storage.tsdb.path={data}/data", f"--web.listen-address=127.0.0.1:{port}"],
                               stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return f"http://127.0.0.1:{port}/api/v1/"


def ask(api, path, **parameters):
    with urllib.request.urlopen(api + path + "?" + urllib.parse.urlencode(parameters), timeout=10) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success", answer
    return answer["data"]


def expected(view):
    """Series, as queries, and their values."""
    device, = view["devices"]
    out = {"stillmap_device_memory_bytes": device["total_bytes"],
           "stillmap_device_used_bytes": device["used_bytes"],
           "stillmap_device_others_bytes": device["others_bytes"],
           "stillmap_device_tasks": len(device["tasks"])}
    for task in device["tasks"]:
        one = f'{{pid="{task["pid"]}",program="{task["program"]}",user="{task["user"]}"}}'
        for name in ("held", "mapped", "suspended", "live", "cached"):
            out[f"stillmap_task_{name}_bytes{one}"] = task[f"{name}_bytes"]
        out[f"stillmap_task_up{one}"] = 1
        out[f'stillmap_tag_suspended_bytes{{task="{task["socket"]}",tag="program"}}'] = task["suspended_bytes"]
    return out


def main():
    folder = find_prometheus()
    with contextlib.ExitStack() as stack:
        machine = Machine(stack, "prometheus")
        suspended = machine.start_program()
        machine.start_program()
        check_rules(folder, machine)
        machine.run("task", "suspend", suspended.pid, "--all")
        metrics = machine.start([BUILT / "tools" / "stillmap", "metrics", "--listen", "127.0.0.1:0"])
        target = metrics.stdout.readline().split("//")[1].split("/")[0]
        api = start_prometheus(stack, folder, target)
        healthy = wait_for("a healthy target", lambda: [
            t for t in ask(api, "targets")["activeTargets"] if t["health"] == "up"])
        print(f"target {healthy[0]['scrapeUrl']} is {healthy[0]['health']}")
        wrong = 0
        for query, value in expected(json.loads(machine.run("top", "--json"))).items():
            result = wait_for(query, lambda q=query: ask(api, "query", query=q)["result"])
            right = len(result) == 1 and float(result[0]["value"][1]) == value
            wrong += not right
            print(f"{'ok   ' if right else 'WRONG'} {query} {result[0]['value'][1]}" + ("" if right else f" is {value}"))
        # Until the first scrape there is another one: nothing has been scraped.
        alerts = wait_for("the alert of the suspended task, and no other", lambda: [
            alert for alert in [ask(api, "alerts")["alerts"]]
            if [a["labels"]["alertname"] for a in alert] == ["StillmapTaskSuspendedTooLong"]])[0]
        print("alerts:", ", ".join(f"{a['labels']['alertname']} {a['state']}" for a in alerts))
        metrics.terminate()
        wrong += metrics.wait() != 0
    if wrong:
        sys.exit(f"prometheus: {wrong} wrong")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    main()
