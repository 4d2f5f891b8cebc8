"""The results of one part: rows, and skipped rows with reasons; written as JSON and as a table."""

import json
import os

from figures import table

FORMAT = "stillmap-torch 1"


def say(text):
    print(f"torch_check: {text}", flush=True)


class Result:
    """Written anew with each row: what stops the run takes no more than the row it was at."""

    def __init__(self, part, machine, folder):
        self.part, self.machine = part, machine
        self.path = os.path.join(folder, f"torch_{part}.json")
        self.rows, self.skipped = [], []

    def add(self, row):
        self.rows.append(row)
        self.write()
        return row

    def skip(self, reason):
        self.skipped.append(reason)
        self.write()
        say(f"{self.part}: skipped: {reason}")

    def failed(self):
        return sum("error" in row for row in self.rows)

    def document(self):
        return {
            "format": FORMAT,
            "part": self.part,
            "machine": self.machine,
            "rows": self.rows,
            "skipped": self.skipped,
        }

    def write(self):
        """A file that is there is whole."""
        with open(self.path + ".part", "w", encoding="utf-8") as out:
            json.dump(self.document(), out, indent=1)
            out.write("\n")
        os.replace(self.path + ".part", self.path)

    def show(self, columns):
        good = [row for row in self.rows if "error" not in row]
        print(f"\n{self.part}")
        for line in table(good, columns) if good else ["no figures"]:
            print(f"  {line}")
        for row in self.rows:
            if "error" in row:
                print(f"  FAILED {label(row)}: {row['error']}")
        for reason in self.skipped:
            print(f"  skipped: {reason}")
        print(flush=True)


def label(row):
    """What tells a row from the others: its words, and its switches that are on."""
    words = []
    for name, value in row.items():
        if isinstance(value, str) and name != "error":
            words.append(value)
        elif value is True:
            words.append(name)
    return " ".join(words)
