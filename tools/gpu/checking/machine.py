"""Describes the machine, and sets the environment of the programs that are run."""
import os
import pathlib
import platform
import subprocess


class Machine:
    def __init__(self, about, environment):
        self.about = about
        self.environment = environment


def first_line_of(path, start):
    try:
        for line in pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(start):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def output_of(command, environment):
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode("utf-8", "replace").strip()


def starts(program, environment):
    try:
        return subprocess.run([str(program), "--help"], env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def look(here, driver, quick):
    """The machine, with an environment in which the bundle's programs start. Ends the program, with
    the loader's own words, where they do not start."""
    environment = dict(os.environ, STILLMAP_DRIVER=driver)
    if driver == "host":
        environment["STILLMAP_HOSTCUDA"] = str(here / "lib" / "hostcuda" / "libcuda.so.1")
        environment.setdefault("HOSTCUDA", "profile=h200")
    else:
        environment["STILLMAP_REQUIRE_GPU"] = "1"
    if quick:
        environment["STILLMAP_BENCH_SMOKE"] = "1"
    commit = (here / "commit").read_text().strip() if (here / "commit").exists() else "unknown"
    environment["STILLMAP_COMMIT"] = commit
    # Our own C++ runtime where this machine's glibc can load it, else the machine's.
    before = environment.get("LD_LIBRARY_PATH")
    for own in ((here / "lib", here / "lib" / "base"), (here / "lib",)):
        environment["LD_LIBRARY_PATH"] = ":".join([str(p) for p in own] + ([before] if before else []))
        if starts(here / "bin" / "stillmap", environment):
            break
    else:
        raise SystemExit("check: the programs do not start here: "
                         + output_of([str(here / "bin" / "stillmap"), "--help"], environment))
    gpu = "hostcuda, " + environment.get("HOSTCUDA", "")
    if driver == "cuda":
        gpu = output_of(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                         "--format=csv,noheader"], environment)
    about = {
        "commit": commit,
        "machine": " ".join((platform.system(), platform.release(), platform.machine())),
        "processor": first_line_of("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "driver": driver,
        "gpu": gpu,
        "quick": quick,
        "doctor": output_of([str(here / "bin" / "stillmap"), "doctor"], environment),
    }
    return Machine(about, environment)
