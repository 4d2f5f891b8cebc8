#!/usr/bin/env python3
"""Checks that what the documents quote of the command `stillmap` is true.

    tools/check/quotes.py [--stillmap PROGRAM] [FILE.md...]       default: all Markdown files but the change log

- Each command in a code span or block exists, and has the options that it is written with.
- Between `<!-- figures: COMMAND -->` and `<!-- end -->` each figure with a unit is one that COMMAND prints. A picture
  there that COMMAND writes under the same name has the same texts.
- Under a line `$ stillmap ...` of a block, each line is one that the command prints, in that order; `...` stands for
  what a machine decides. A page with the line `<!-- run by tools/check/guide.py -->` is one session, and is run there.

Commands run in an empty folder, on hostcuda. Paths of the repository are found from there.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPAN = re.compile(r"`(stillmap [^`]*)`")
FIGURES = re.compile(r"<!-- figures: (?P<command>.*?) -->\n(?P<text>.*?)<!-- end -->", re.S)
FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)? (?:[KMGT]iB|pieces|requests|blocks)\b")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]*\.svg)\)")
SVG_TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")
ONE_SESSION = "<!-- run by tools/check/guide.py -->"
TIME_LIMIT = 600  # seconds of a command


def blocks_of(text):
    """The fenced blocks of a Markdown text, each as its lines."""
    out, inside = [], None
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            if inside is None:
                inside = []
            else:
                out.append(inside)
                inside = None
        elif inside is not None:
            inside.append(line)
    return out


def commands_of(text):
    """Every command line `stillmap ...` that is quoted."""
    lines = [line.strip().removeprefix("$ ").split(" #")[0] for block in blocks_of(text) for line in block]
    prose = re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.S | re.M)
    return [line for line in lines if line.startswith("stillmap ")] + SPAN.findall(prose)


def words_of(command):
    """The names of a command and of its groups, and the options it is given."""
    own = re.split(r" -- | \| ", command)[0].split()
    names = []
    for word in own[1:4]:
        if not re.fullmatch(r"[a-z]+", word):
            break
        names.append(word)
    return names, sorted({word.strip("[].,").split("=")[0] for word in own if re.match(r"\[?--[a-z]", word)})


def sessions_of(text):
    """(command, quoted lines of its output) of each `$ stillmap ...`."""
    out = []
    for block in blocks_of(text):
        for line in block:
            if line.startswith("$ "):
                out.append((line[2:], []))
            elif out and block[0].startswith("$ ") and line.strip():
                out[-1][1].append(line)
    return [(command, lines) for command, lines in out if command.startswith("stillmap ")]


def missing_lines(quoted, printed):
    """The first quoted line that is not printed after the one before it; None: all are."""
    rest = iter(printed.splitlines())
    for line in quoted:
        pattern = re.compile(r"\s*" + r".*".join(re.escape(part) for part in line.strip().split("...")) + r"\s*")
        if not any(pattern.fullmatch(candidate) for candidate in rest):
            return line
    return None


class Checker:
    def __init__(self, stillmap):
        self.stillmap = stillmap
        self.helps = {}

    def run(self, arguments, folder):
        done = subprocess.run([self.stillmap, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=TIME_LIMIT, check=False)
        return done.returncode, done.stdout

    def help_of(self, names):
        """The help of the longest command that the names begin with; None: there is none."""
        for count in range(len(names), 0, -1):
            key = tuple(names[:count])
            if key not in self.helps:
                status, text = self.run([*key, "--help"], ROOT)
                self.helps[key] = text if status == 0 else None
            if self.helps[key]:
                return self.helps[key]
        return None

    def check_command(self, command):
        names, options = words_of(command)
        if not names:
            return []
        text = self.help_of(names)
        if text is None:
            return ["`%s`: there is no such command" % command]
        return ["`%s`: it has no option %s" % (command, option) for option in options
                if not re.search(r"%s\b" % re.escape(option), text)]

    def run_quoted(self, command, folder):
        """Runs a command line; files of the repository may be named."""
        words = shlex.split(command)[1:]
        return self.run([str(ROOT / word) if (ROOT / word).is_file() else word for word in words], folder)

    def check_session(self, command, lines):
        with tempfile.TemporaryDirectory() as folder:
            _, printed = self.run_quoted(command, folder)
        line = missing_lines(lines, printed)
        return [] if line is None else ["`%s`: it does not print '%s', but:\n%s" % (command, line, printed)]

    def check_figures(self, command, text):
        with tempfile.TemporaryDirectory() as folder:
            status, printed = self.run_quoted(command, folder)
            if status != 0:
                return ["`%s`: it ends with status %d:\n%s" % (command, status, printed)]
            known = set(FIGURE.findall(printed))
            out = ["'%s' is no figure of `%s`" % (figure, command) for figure in FIGURE.findall(text)
                   if figure not in known]
            for picture in PICTURE.findall(text):
                made = pathlib.Path(folder) / pathlib.Path(picture).name
                if made.exists() and SVG_TEXT.findall(made.read_text()) != SVG_TEXT.findall((ROOT / picture).read_text()):
                    out.append("%s is not the picture that `%s` makes" % (picture, command))
        return out

    def check(self, text):
        out = [fault for command in sorted(set(commands_of(text))) for fault in self.check_command(command)]
        for found in FIGURES.finditer(text):
            out += self.check_figures(found["command"], found["text"])
        for command, lines in [] if ONE_SESSION in text else sessions_of(text):
            out += self.check_session(command, lines)
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stillmap", default=str(ROOT / "bazel-bin/tools/stillmap"), metavar="PROGRAM")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    os.environ.setdefault("STILLMAP_DRIVER", "host")
    os.environ.setdefault("STILLMAP_HOSTCUDA", str(ROOT / "bazel-bin/hostcuda/libcuda.so.1"))
    files = options.files or [ROOT / name for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        if name != "CHANGELOG.md"]
    checker, faults, count = Checker(os.path.abspath(options.stillmap)), 0, 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        count += len(commands_of(text))
        for fault in checker.check(text):
            print("%s: %s" % (os.path.relpath(file, ROOT), fault), file=sys.stderr)
            faults += 1
    print("quotes: %d commands in %d files, %d problems" % (count, len(files), faults))
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
