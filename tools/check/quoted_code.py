#!/usr/bin/env python3
"""Compares the code that README.md and docs/ quote with the examples that it comes from, which the tests run.

    tools/check/quoted_code.py [--fix]

A quotation is a code block after the comment `<!-- FILE: NAME -->`; in FILE it stands between the lines
`// [NAME]` and `// [/NAME]` (or with `#`). --fix writes the examples' lines into the pages.
"""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUOTATION = re.compile(r"(<!-- (\S+): (\w+) -->\n```\w+\n)(.*?)(```\n)", re.S)


def region(text, name):
    """The lines of a region without their indentation; None where there is no such region."""
    found = re.search(r"^ *(?://|#) \[%s\]\n(.*?)^ *(?://|#) \[/%s\]$" % (name, name), text, re.S | re.M)
    return textwrap.dedent(found.group(1)) if found else None


def compare(page, read):
    """The page with the examples' lines, and a message for each quotation that differs from them."""
    wrong = []

    def fixed(found):
        head, file, name, quoted, end = found.groups()
        code = region(read(file), name)
        if code is None:
            wrong.append("%s has no region [%s]" % (file, name))
            return found.group(0)
        if code != quoted:
            wrong.append("[%s] is not what %s says" % (name, file))
        return head + code + end

    return QUOTATION.sub(fixed, page), wrong


def main():
    failed = False
    for path in [ROOT / "README.md"] + sorted((ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        fixed, wrong = compare(page, lambda file: (ROOT / file).read_text(encoding="utf-8"))
        for what in wrong:
            print("%s: %s" % (path.relative_to(ROOT), what))
        if "--fix" in sys.argv[1:]:
            path.write_text(fixed, encoding="utf-8")
            wrong = [what for what in wrong if "has no region" in what]
        failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
