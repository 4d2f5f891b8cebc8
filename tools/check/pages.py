#!/usr/bin/env python3
"""Checks the pages: none is long, and whatever leads to a page leads to one that is there.

    tools/check/pages.py

  length   README.md, CONTRIBUTING.md, hostcuda/README.md and the pages of docs/ and hostcuda/docs/ have at most
           2,000 words (`wc -w`), which takes ten minutes to read. Longer are only the specifications of a format
           or protocol in SPECIFICATIONS. Reports in a folder of docs/results/ are written by programs
  links    a relative link of a Markdown file, and a page that any other file names by its path from the root
           (docs/errors.md#codes), leads to a file, and to a heading of it
"""
import pathlib
import posixpath
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS = 2000
SPECIFICATIONS = ("docs/image_format.md", "docs/migration_protocol.md")
PLANTED = ("tools/check/pages_test.py",)  # names pages that do not exist
PAGE = re.compile(r"((hostcuda/)?README|CONTRIBUTING|docs/(results/)?[^/]+|hostcuda/docs/[^/]+)\.md")

BLOCK = re.compile(r"^ *```.*?^ *```", re.S | re.M)
SPAN = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")
NAMED = re.compile(r"(?<![\w./-])((?:docs|hostcuda)/[\w/.-]+\.md)(?:#([\w-]+))?")


def headings_of(text):
    """The names by which links lead to the headings of a page."""
    out = set()
    for heading in re.findall(r"^#+ +(.*?) *$", BLOCK.sub("", text), re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        while name in out:
            name += "-1"
        out.add(name)
    return out


def links_of(path, text):
    """(file, heading or None) of each link."""
    if not path.endswith(".md"):
        return NAMED.findall(text)
    folder = posixpath.dirname(path)
    return [(posixpath.normpath(posixpath.join(folder, file)) if file else path, heading)
            for file, heading in LINK.findall(SPAN.sub("", BLOCK.sub("", text)))]


def problems_of(files, exists):
    """`files`: text by path. `exists(path)`: whether there is such a file or folder."""
    for path in SPECIFICATIONS:
        if path not in files:
            yield "%s: this specification does not exist" % path
    for path, text in sorted(files.items()):
        words = len(text.split())
        if PAGE.fullmatch(path) and path not in SPECIFICATIONS and words > MOST_WORDS:
            yield "%s: %d words, a page has at most %d: make it several pages" % (path, words, MOST_WORDS)
        for file, heading in links_of(path, text):
            if not exists(file):
                yield "%s: there is no %s" % (path, file)
            elif heading and file.endswith(".md") and heading not in headings_of(files[file]):
                yield "%s: %s has no heading #%s" % (path, file, heading)


def main():
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    files = {}
    for name in names:
        path = ROOT / name
        if path.is_file() and name not in PLANTED:
            content = path.read_bytes()
            if b".md" in content or name.endswith(".md"):
                files[name] = content.decode("utf-8", "replace")
    found = list(problems_of(files, lambda path: (ROOT / path).exists()))
    for problem in found:
        print(problem, file=sys.stderr)
    print("pages: %d pages, %d problems" % (sum(1 for path in files if PAGE.fullmatch(path)), len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
