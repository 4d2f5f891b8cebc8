#!/usr/bin/env python3
"""Debian packages: lintian reads them, a fresh Debian installs, uses and removes them.

    tools/check/package.py BUILD [--all-libraries]     BUILD: a build folder that was configured for /usr

cpack makes the packages twice: the same commit gives the same bytes. lintian has no error and no warning,
systemd-analyze none for the units. Then the packages are installed in a minimal root of this machine's Debian, with
what they depend on. There the command runs without a driver and on hostcuda, the services do what their units say,
a memory arrives in the receiver and is saved when that is stopped, and a program is built with libstillmap-dev. After
their removal the root has the files that it had before.

Needs root, and what tools/setup.sh's ensure_ci_packages installs. The root is cached in .cache/package. lintian takes
minutes for static libraries that are not optimised, so it sees one of them; with --all-libraries, all.
"""
import contextlib
import functools
import gzip
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

import operated_machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "package"
PATIENCE = 60  # seconds
MAX_EXPOSURE = 30  # tenths, of systemd-analyze security
USER = "games"  # whose memory the receiver receives: any that a minimal Debian has, with a group of its name

failures = []
wait_for = functools.partial(operated_machine.wait_for, patience=PATIENCE)


def check(what, right, seen=""):
    print(f"{'ok   ' if right else 'WRONG'} {what}" + ("" if right else f"\n{seen}"), flush=True)
    if not right:
        failures.append(what)


def call(*words, **more):
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **more)
    if done.returncode != 0:
        sys.exit(f"package: {shlex.join(map(str, words))} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


# The packages


def make_packages(build, folder):
    """gzip in place of xz, which takes most of a minute."""
    call("cpack", "--config", build / "CPackConfig.cmake", "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",
         cwd=build)
    return sorted(folder.glob("*.deb"))


def check_same_bytes(build, packages, work):
    again = make_packages(build, work / "again")
    digests = [[hashlib.sha256(p.read_bytes()).hexdigest() for p in some] for some in (packages, again)]
    check("packages that are made twice have the same bytes", digests[0] == digests[1], f"{packages}\n{digests}")


def with_one_library(package, work):
    """The package with its smallest static library alone."""
    folder = work / "one-library"
    call("dpkg-deb", "--raw-extract", package, folder)
    libraries = sorted(folder.rglob("*.a"), key=lambda p: p.stat().st_size)
    for library in libraries[1:]:
        library.unlink()
    sums = folder / "DEBIAN" / "md5sums"
    gone = {str(p.relative_to(folder)) for p in libraries[1:]}
    sums.write_text("".join(line for line in sums.open(encoding="utf-8") if line.split(maxsplit=1)[1].strip() not in gone),
                    encoding="utf-8")
    call("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", folder, work / package.name)
    return work / package.name


def check_lintian(packages, work, all_libraries):
    seen = [p if all_libraries or "-dev_" not in p.name else with_one_library(p, work) for p in packages]
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0",
                           *map(str, seen)], text=True, capture_output=True, check=False)
    check("lintian has no error and no warning", done.returncode == 0 and not done.stdout.strip(),
          done.stdout + done.stderr)
    overrides = [line for p in packages for line in call("dpkg-deb", "-c", p).splitlines() if "lintian/overrides" in line]
    check("nothing overrides lintian", not overrides, "\n".join(overrides))


def check_units(packages, work):
    """Beside the system's own units, which the package's refer to; the user's unit as one of the system, because
    systemd-analyze has no users in another root."""
    root = work / "units"
    call("dpkg-deb", "-x", next(p for p in packages if p.name.startswith("stillmap_")), root)
    system = root / "lib" / "systemd" / "system"
    if not system.exists():
        system = root / "usr" / "lib" / "systemd" / "system"
    names = sorted(p.name for p in system.glob("stillmap*"))
    for unit in (root / "usr" / "lib" / "systemd" / "user").glob("stillmap*"):
        shutil.copy(unit, system)
        names.append(unit.name)
    check("the package has three units", len(names) == 3, names)
    call("cp", "-a", "--no-clobber", "/lib/systemd/system/.", system)
    for name in names:
        started = name.replace("@", f"@{USER}")
        # It warns of unknown settings, and succeeds.
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--root={root}", started], text=True,
                              capture_output=True, check=False)
        check(f"systemd-analyze verify {started}", done.returncode == 0 and not (done.stdout + done.stderr).strip(),
              done.stdout + done.stderr)
        pages = re.findall(r"^Documentation=man:(\S+)\((\d)\)$", (system / name).read_text(), re.MULTILINE)
        check(f"{name} names a manual page of the package",
              pages and all((root / f"usr/share/man/man{n}/{page}.{n}.gz").exists() for page, n in pages), pages)
        if "holder" in name:
            continue  # a user's: what it may do is what the user may
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}",
                               f"--root={root}", started], text=True, capture_output=True, check=False)
        exposure = re.search(r"exposure level for .*: ([\d.]+)", done.stdout)
        check(f"systemd-analyze security {started}: {exposure and exposure[1]}, at most {MAX_EXPOSURE / 10}",
              done.returncode == 0 and exposure, done.stdout + done.stderr)


# The root


class Root:
    """A minimal Debian, in which commands run. /proc and /dev are mounted for each command alone."""

    def __init__(self, folder, has_mounts=True):
        self.path = folder
        codename = re.search(r"^VERSION_CODENAME=(\w+)$", pathlib.Path("/etc/os-release").read_text(), re.MULTILINE)[1]
        archive = CACHE / f"{codename}.tar"
        if not archive.exists():
            print(f"package: making a minimal root of {codename} in .cache/package", file=sys.stderr)
            CACHE.mkdir(parents=True, exist_ok=True)
            call("mmdebstrap", "--quiet", "--variant=minbase", codename, CACHE / "new.tar")
            (CACHE / "new.tar").rename(archive)
        folder.mkdir()
        call("tar", "-C", folder, "-xf", archive)
        shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
        self.has_mounts = has_mounts and subprocess.run(
            ["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def words(self, words, user="root", has_network=True):
        mounts = f'mount -t proc proc "{self.path}/proc" && mount --rbind /dev "{self.path}/dev" && ' if self.has_mounts else ""
        apart = ["unshare", "--mount", *([] if has_network else ["--net"])] if self.has_mounts else []
        return [*apart, "sh", "-c", f'{mounts}exec chroot "--userspec=$0" "{self.path}" "$@"', user, *map(str, words)]

    @staticmethod
    def environment(**more):
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive", **more}

    def try_run(self, *words, has_network=True, **more):
        return subprocess.run(self.words(words, has_network=has_network), env=self.environment(**more), text=True,
                              capture_output=True, check=False)

    def run(self, *words, **more):
        done = self.try_run(*words, **more)
        if done.returncode != 0:
            sys.exit(f"package: in the root, {shlex.join(map(str, words))} ended with status {done.returncode}:\n"
                     f"{done.stdout}{done.stderr}")
        return done.stdout

    def files(self):
        found = set()
        for folder, folders, files in os.walk(self.path):
            here = pathlib.Path(folder).relative_to(self.path)
            found.update(str(here / name) for name in folders + files)
        return found


def fields_of(package):
    return dict(line.split(": ", 1) for line in call("dpkg-deb", "-f", package).splitlines() if re.match(r"[\w-]+: ", line))


def install(root, packages):
    """What the packages need first, then they alone. Returns the files before they came."""
    folder = root.path / "packages"
    folder.mkdir()
    for package in packages:
        shutil.copy(package, folder)
    ours = {fields_of(p)["Package"] for p in packages}
    needed = [word.strip() for p in packages for word in fields_of(p)["Depends"].split(",")]
    needed = sorted({word for word in needed if word.split()[0] not in ours})
    root.run("apt-get", "-q", "update")
    root.run("apt-get", "-q", "-y", "--no-install-recommends", "satisfy", ", ".join(needed))
    before = root.files()
    root.run("apt-get", "-q", "-y", "--no-install-recommends", "install",
             *(f"/packages/{p.name}" for p in packages))
    scripts = [p.name for p in (root.path / "var/lib/dpkg/info").glob("*stillmap*") if re.search(r"(inst|rm)$", p.name)]
    check("no package has a script", not scripts, scripts)
    return before


def remove(root, packages, before):
    root.run("apt-get", "-q", "-y", "purge", *(fields_of(p)["Package"] for p in packages))
    after = root.files()
    check("the packages left no file, and took none", before == after, sorted(before ^ after))


# The command


def commands_of(root, *words):
    """The commands below one, as its help lists them; each with all its words."""
    text = root.run("stillmap", *words, "--help")
    listed = re.search(r"^Commands:\n(.*?)(\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    names = re.findall(r"^  (\S+(?: \S+)*)(?:  |$)", listed[1], re.MULTILINE) if listed else []
    return [(*words, *name.split()) for name in names]


def check_help(root):
    """Each command has a manual page, and each page a command; bash completes each."""
    commands = commands_of(root)
    prefixes = {words[:n] for words in commands for n in range(len(words))}
    pages = {"-".join(("stillmap", *words)) for words in {*commands, *prefixes}}
    installed = {p.name.removesuffix(".1.gz") for p in (root.path / "usr/share/man/man1").glob("stillmap*")}
    check(f"each of {len(pages)} commands and groups has a manual page", pages == installed, sorted(pages ^ installed))
    texts = [gzip.decompress(p.read_bytes()).decode() for p in (root.path / "usr/share/man/man1").glob("stillmap*")]
    check("each page is one", all(text.startswith(".TH STILLMAP") and ".SH NAME" in text for text in texts))
    script = root.path / "usr/share/bash-completion/completions/stillmap"
    for prefix in sorted(prefixes):
        below = sorted({words[len(prefix)] for words in commands if words[:len(prefix)] == prefix})
        words = ["stillmap", *prefix, ""]
        offered = call("bash", "-c", f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
                       "_stillmap; printf '%s\\n' \"${COMPREPLY[@]}\"").split()
        check(f"bash completes {' '.join(words[:-1])}", sorted(offered) == below, f"{offered}\n{below}")


def check_without_driver(root, version):
    check("stillmap --version", root.run("stillmap", "--version").strip() == f"stillmap {version}")
    done = root.try_run("stillmap", "doctor")
    check("doctor says that there is no driver", done.returncode == 3 and "no CUDA driver" in done.stderr,
          f"{done.returncode} {done.stdout}{done.stderr}")
    done = root.try_run("stillmap", "run", "--", "true")
    check("a program without CUDA runs under stillmap run", done.returncode == 0 and "status 0" in done.stderr,
          f"{done.returncode} {done.stdout}{done.stderr}")
    if root.has_mounts:  # in a network of its own there are no tasks of this machine
        done = root.try_run("stillmap", "top", "--once", has_network=False)
        check("top says that there is no GPU", done.returncode == 0 and "no GPU is known" in done.stdout,
              f"{done.returncode} {done.stdout}{done.stderr}")


def check_development(root, work, hostcuda):
    """Projects in C++ and in C that find the installed package."""
    consumers = ROOT / "tests" / "system" / "install"
    for name, define in (("components_consumer", "CONSUMER_COMPONENTS=vmm"),
                         ("c_consumer", f"EXAMPLE={ROOT}/examples/c_api.c")):
        call("cmake", "-S", consumers / name, "-B", work / name, f"-DCMAKE_PREFIX_PATH={root.path}/usr", f"-D{define}")
        call("cmake", "--build", work / name)
        call("ctest", "--test-dir", work / name, "--output-on-failure",
             env={**os.environ, "STILLMAP_DRIVER": "host", "STILLMAP_HOSTCUDA": str(hostcuda / "libcuda.so.1")})
    print("ok    programs in C++ and C are built with libstillmap-dev")


# On hostcuda


class Machine:
    """Programs in the root, on a machine of hostcuda's, and units, as systemd would start them."""

    def __init__(self, stack, root, build):
        self.stack, self.root = stack, root
        self.folder = root.path / "tmp" / "check"
        self.folder.mkdir()
        shutil.copytree(build / "lib" / "stillmap" / "hostcuda", self.folder / "hostcuda")
        self.variables = {"HOSTCUDA": f"profile=h200,machine=package-{os.getpid()}", "STILLMAP_DRIVER": "host",
                          "STILLMAP_HOSTCUDA": "/tmp/check/hostcuda/libcuda.so.1"}

    def start(self, words, user="root", **more):
        """Its output, which is one file a process, is read by wait_for."""
        log = tempfile.NamedTemporaryFile("r", dir=self.folder, delete=False)
        process = subprocess.Popen(self.root.words(words, user=user), stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                                   env=self.root.environment(**self.variables, **more))
        process.said = lambda: pathlib.Path(log.name).read_text(encoding="utf-8")
        self.stack.callback(log.close)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.stack.callback(process.stdin.close)
        return process

    def run(self, *words, **more):
        return self.root.run(*words, **self.variables, **more)

    def said(self, process, pattern):
        """The match of a pattern in what a process says."""
        def look():
            found = re.search(pattern, process.said())
            if not found and process.poll() is not None:
                sys.exit(f"package: {process.args[-1]} ended with status {process.returncode}:\n{process.said()}")
            return found
        return wait_for(f"'{pattern}'", look)

    def start_unit(self, name, instance="", replaced=("", ""), **more):
        """Understands of a unit what ours have: no isolation."""
        unit = next(p for folder in ("lib/systemd/system", "usr/lib/systemd/system", "usr/lib/systemd/user")
                    for p in [self.root.path / folder / name] if p.exists())
        credentials = f"/tmp/check/credentials-{instance}"
        for letter, value in (("%i", instance), ("%d", credentials), ("%S", "/var/lib"), ("%t", "/tmp/check")):
            replaced = (*replaced, letter, value)
        text = unit.read_text(encoding="utf-8")
        for old, new in zip(replaced[::2], replaced[1::2]):
            assert not old or old in text or old.startswith("%"), f"{name} has no {old}"
            text = text.replace(old, new) if old else text
        setting = lambda key: re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)
        variables = dict(line.split("=", 1) for file in setting("EnvironmentFile")
                         for line in (self.root.path / file.lstrip("/")).read_text(encoding="utf-8").splitlines())
        user = (setting("User") or ["root"])[0]
        for folder in setting("StateDirectory"):
            (self.root.path / "var/lib" / folder).mkdir(parents=True, exist_ok=True)
            self.root.run("chown", f"{user}:{user}", f"/var/lib/{folder}")
        for loaded in setting("LoadCredential"):
            file, source = loaded.split(":", 1)
            target = self.root.path / credentials.lstrip("/") / file
            target.parent.mkdir(exist_ok=True)
            shutil.copy(self.root.path / source.lstrip("/"), target)
            # systemd gives the user an access list, whose mask looks like the group's rights.
            target.chmod(0o440)
            self.root.run("chown", f"root:{user}", f"{credentials}/{file}")
        line, = setting("ExecStart")
        line = re.sub(r"\$\{(\w+)\}", lambda m: shlex.quote(variables[m[1]]), line)
        line = re.sub(r"\$(\w+)", lambda m: variables[m[1]], line)
        return self.start(shlex.split(line), user=f"{user}:{user}", **more)

    def stop(self, process, status=0):
        process.send_signal(signal.SIGTERM)
        ended = process.wait(PATIENCE)
        return ended == status


def check_program(machine, build):
    """A program that nobody changed, under stillmap run of the package, obeys an operator."""
    cuda = call("bash", "-c", f"source {ROOT}/tools/setup.sh && find_cuda_headers").strip()
    call("g++", "-std=c++20", f"-I{ROOT}", f"-I{cuda}", ROOT / "tests/preload/clients/operated.cpp", "-o",
         machine.folder / "operated", f"-L{build}/lib/stillmap/hostcuda", "-lcuda")
    program = machine.start(["stillmap", "run", "--control", "--", "/tmp/check/operated", "1"],
                            LD_LIBRARY_PATH="/tmp/check/hostcuda")
    machine.said(program, r"ready \d+ \d+")
    listed = machine.run("stillmap", "task", "list", "--filter", "name:operated")
    socket = re.search(r"@stillmap-\d+\.control", listed)[0]
    machine.run("stillmap", "task", "suspend", socket, "--all")
    check("a program under stillmap run is suspended", "suspended" in machine.run("stillmap", "task", "status", socket))
    machine.run("stillmap", "task", "resume", socket, "--all")
    program.stdin.write("constant\n")
    program.stdin.flush()
    machine.said(program, r"(?m)^right$")
    program.stdin.close()
    program.wait(PATIENCE)
    check("and ends, with a report", program.returncode == 0 and "operated ended with status 0" in program.said(),
          program.said())


def check_metrics(machine, version):
    unit = machine.start_unit("stillmap-metrics.service", replaced=("127.0.0.1:9835", "127.0.0.1:0"),
                              LD_LIBRARY_PATH="/tmp/check/hostcuda")
    address = machine.said(unit, r"http://\S+")[0]
    with urllib.request.urlopen(address, timeout=PATIENCE) as reply:
        text = reply.read().decode()
    check("the unit stillmap-metrics serves a device",
          f'stillmap_build{{version="{version}"}} 1' in text and "stillmap_device_memory_bytes{" in text, text)
    check("and ends when it is stopped", machine.stop(unit), unit.said())


def check_holder(machine):
    unit = machine.start_unit("stillmap-holder.service")
    wait_for("the holder's socket", lambda: (machine.folder / "stillmap.holder").exists())
    machine.run("stillmap", "task", "published", "/tmp/check/stillmap.holder")
    check("the unit stillmap-holder answers, and ends when it is stopped", machine.stop(unit), unit.said())


def credentials(machine, folder):
    text = machine.run("stillmap", "task", "migrate", "credentials", folder, "--name", "check")
    return re.search(r"--peer-fingerprint ([0-9a-f:]+)", text, re.IGNORECASE)[1]


def check_receiver(machine, build):
    """A task's memory arrives in the unit, is saved when that is stopped, and keeps it from starting again."""
    place = f"/etc/stillmap/receive/{USER}"
    (machine.root.path / place.lstrip("/")).parent.mkdir(parents=True)
    ours, theirs = credentials(machine, "/tmp/check/source"), credentials(machine, place)
    (machine.root.path / place.lstrip("/") / "receive.conf").write_text(
        f"LISTEN=127.0.0.1:0\nPEERS=--peer-fingerprint {ours}\n", encoding="utf-8")
    shutil.copy(build / "bin" / "controlled_task", machine.folder)
    task = machine.start(["/tmp/check/controlled_task", "/tmp/check/task.control"])
    wait_for("the task's socket", lambda: (machine.folder / "task.control").exists())
    waiting = machine.start_unit("stillmap-receive@.service", USER)
    machine.said(waiting, "waiting at")
    check("the unit stillmap-receive@ ends well while it waits", machine.stop(waiting), waiting.said())
    unit = machine.start_unit("stillmap-receive@.service", USER)
    address = machine.said(unit, r"waiting at (\S+?);")[1]
    sent = machine.run("stillmap", "task", "migrate", "send", "/tmp/check/task.control", "--all", "--to", address,
                       "--credentials", "/tmp/check/source", "--peer-fingerprint", theirs, "--records", "/tmp/check")
    machine.said(unit, r"stillmap: ok: .*held")
    check("and another time owns what was sent", "stillmap: ok: now owned by" in sent, sent)
    state = machine.root.path / "var/lib/stillmap/receive" / USER
    check("and saves it when it is stopped", machine.stop(unit) and (state / "saved.smi").exists(), unit.said())
    verified = machine.run("stillmap", "image", "verify", f"/var/lib/stillmap/receive/{USER}/saved.smi")
    check("as an image that is right", "stillmap: ok:" in verified, verified)
    again = machine.start_unit("stillmap-receive@.service", USER)
    prevented = re.search(r"^RestartPreventExitStatus=(.*)$", (
        next(machine.root.path.glob("*/systemd/system/stillmap-receive@.service"))).read_text(), re.MULTILINE)[1].split()
    check("and is not started again while the image is there", str(again.wait(PATIENCE)) in prevented, again.said())
    task.stdin.close()
    for folder in ("etc/stillmap", "var/lib/stillmap"):  # an operator's, whom no package removes
        shutil.rmtree(machine.root.path / folder)


def main():
    words = sys.argv[1:]
    has_mounts, all_libraries = "--no-mounts" not in words, "--all-libraries" in words
    words = [word for word in words if not word.startswith("--")]
    if len(words) != 1:
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("package: installing in a root of its own needs root")
    build = pathlib.Path(words[0]).resolve()
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stillmap-package-")))
        work.chmod(0o755)
        packages = make_packages(build, work / "packages")
        for package in packages:
            print(f"     {package.name}: {package.stat().st_size / 1e6:.1f} MB")
        check("there are three packages", len(packages) == 3)
        version = fields_of(packages[0])["Version"]
        check_same_bytes(build, packages, work)
        check_lintian(packages, work, all_libraries)
        check_units(packages, work)
        root = Root(work / "root", has_mounts)
        before = install(root, packages)
        check_without_driver(root, version)
        check_help(root)
        check_development(root, work, build / "lib" / "stillmap" / "hostcuda")
        if root.has_mounts:
            with contextlib.ExitStack() as running:
                machine = Machine(running, root, build)
                check_program(machine, build)
                check_metrics(machine, version)
                check_holder(machine)
                check_receiver(machine, build)
            shutil.rmtree(machine.folder)
        else:
            print("     nothing can be mounted here: what needs /proc was not run")
        remove(root, packages, before)
    if failures:
        sys.exit(f"package: {len(failures)} wrong")


if __name__ == "__main__":
    main()
