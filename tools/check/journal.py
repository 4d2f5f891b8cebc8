#!/usr/bin/env python3
"""systemd's journal has a record of each request to a task.

    tools/check/journal.py

A systemd-journald with a namespace of its own runs beside a program that nobody changed. `stillmap task` suspends and
resumes it, and is refused once; journalctl then has these requests, and nothing else. Needs root, systemd, the command
and the tests' programs as Bazel builds them.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from operated_machine import Machine, wait_for

JOURNALD = "/lib/systemd/systemd-journald"
NAMESPACE = f"stillmap-check-{os.getpid()}"


def start_journald(stack):
    """It makes its folders itself, and does not remove them."""
    machine_id = pathlib.Path("/etc/machine-id").read_text(encoding="ascii").strip()
    for folder in (f"/run/systemd/journal.{NAMESPACE}", f"/run/log/journal/{machine_id}.{NAMESPACE}",
                   f"/var/log/journal/{machine_id}.{NAMESPACE}"):
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
    process = subprocess.Popen([JOURNALD, NAMESPACE], stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    wait_for("the journal's socket", pathlib.Path(f"/run/systemd/journal.{NAMESPACE}/socket").exists)


def read_journal():
    done = subprocess.run(["journalctl", f"--namespace={NAMESPACE}", "-o", "json", "SYSLOG_IDENTIFIER=stillmap"],
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    with contextlib.ExitStack() as stack:
        start_journald(stack)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = Machine(stack, "journal")
        program = machine.start_program(STILLMAP_AUDIT=f"{folder}/audit.jsonl,journald:{NAMESPACE}")
        requests = [("suspend", "ok"), ("resume", "ok"), ("restore", "failed")]
        machine.run("task", "suspend", program.pid, "--all")
        machine.run("task", "resume", program.pid, "--all")
        with contextlib.suppress(subprocess.CalledProcessError):
            machine.run("task", "restore", program.pid, folder / "none.smi", "--all")
        entries = wait_for("the requests", lambda: len(found := read_journal()) >= len(requests) and found)
        lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    for entry in entries:
        print(entry["MESSAGE"])
    found = [(e["STILLMAP_REQUEST"], e["STILLMAP_OUTCOME"]) for e in entries]
    assert found == requests, found
    assert [(line["request"], line["outcome"]) for line in lines] == requests, lines
    for entry, line in zip(entries, lines):
        # Fields that begin with _ are the journal's own, as the kernel says.
        assert int(entry["_PID"]) == program.pid == line["pid"], entry
        assert int(entry["STILLMAP_CLIENT_UID"]) == os.getuid() == line["client_uid"], entry
        assert entry["STILLMAP_TASK"] == line["task"], entry
        assert entry["STILLMAP_TAGS"] == "(all)" and line["all"], entry
        assert entry["PRIORITY"] == {"ok": "5", "failed": "4"}[line["outcome"]], entry
    print(f"{len(entries)} requests are in systemd's journal, and in a file")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    main()
