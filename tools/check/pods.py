#!/usr/bin/env python3
"""Programs in containers, as an operator on the host sees them.

    tools/check/pods.py

Two programs that nobody changed run in PID, network and mount namespaces of their own, as the containers of two pods do,
each with a folder for its socket that the host has, too. `stillmap top` and `stillmap task` on the host find both by
these folders, know their processes by the host's ids, and suspend and resume one. Both take part in one shared quota,
until one is killed. Needs root, and the command and the tests' programs as Bazel builds them.
"""
import contextlib
import json
import pathlib
import sys
import tempfile

from operated_machine import BUILT, Machine, wait_for

CONTAINER = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]


def start_pod(machine, folder, quota):
    folder.mkdir()
    program = machine.start([*CONTAINER, BUILT / "tests" / "preload_operated", "1"],
                            STILLMAP_PRELOAD_CONTROL=f"{folder}/", STILLMAP_PRELOAD_SHARE=f"{quota}:1GiB",
                            LD_PRELOAD=str(BUILT / "preload" / "libstillmap_preload.so"))
    assert program.stdout.readline().startswith("ready"), "a program did not start"
    return program


def main():
    with contextlib.ExitStack() as stack:
        machine = Machine(stack, "pods")
        top = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folders = [top / "a", top / "b"]
        programs = [start_pod(machine, folder, top / "quota") for folder in folders]

        def look():
            device, = json.loads(machine.run("top", "--json", *folders))["devices"]
            return {pathlib.Path(t["socket"]).parent: t for t in device["tasks"] if t["socket"].startswith(str(top))}

        before = look()
        assert set(before) == set(folders), before
        # Both have the same id in their own namespaces.
        assert {pathlib.Path(t["socket"]).name for t in before.values()} == {"stillmap-1.control"}, before
        for task in before.values():
            name = pathlib.Path(f"/proc/{task['pid']}/comm").read_text(encoding="utf-8").strip()
            assert name == task["program"] == "preload_operate", task
            assert task["held_bytes"] >= task["mapped_bytes"] > 0, task
        first = before[folders[0]]
        machine.run("task", "suspend", first["socket"], "--all")
        away = look()
        assert [away[f]["state"] for f in folders] == ["suspended", "runs"], away
        assert away[folders[0]]["mapped_bytes"] == 0, away
        machine.run("task", "resume", first["socket"], "--all")
        assert [look()[f]["state"] for f in folders] == ["runs", "runs"]

        def participants():
            return json.loads(machine.run("quota", "status", top / "quota", "--json"))["participants"]

        assert len(participants()) == 2, participants()
        programs[0].kill()
        wait_for("the end of one", lambda: len(participants()) == 1)
    print("two programs in namespaces of their own: found, told apart, suspended and resumed from the host;\n"
          "one quota for both")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    main()
