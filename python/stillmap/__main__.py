"""`stillmap ...`, as pip installs it, and `python -m stillmap ...` are the command that the package contains.

A command of a group may be named without it: `compare` is `trace compare`, `inspect` is
`image inspect`, `list` is `task list`.
"""

import os
import shutil
import sys

_GROUPS = {
    "image": ("inspect", "verify", "diff", "flatten"),
    "task": ("list", "status", "handoff", "migrate"),
    "trace": ("import", "replay", "compare", "soak"),
}


def with_group(arguments):
    for group, commands in _GROUPS.items():
        if arguments and arguments[0] in commands:
            return [group, *arguments]
    return arguments


def find_command():
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "stillmap")
    if os.access(own, os.X_OK):
        return own
    found = shutil.which("stillmap")
    # Not the script that pip has made of this file.
    this = found is not None and os.path.exists(sys.argv[0]) and os.path.samefile(found, sys.argv[0])
    return None if this else found


def main(arguments=None):
    command = find_command()
    if command is None:
        sys.exit("stillmap: this installation has no command: neither in the package nor in PATH")
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.stdout.flush()
    os.execv(command, [command, *with_group(list(arguments))])


if __name__ == "__main__":
    main()
