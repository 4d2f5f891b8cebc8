"""The context that a part's measure() gets: workers, its time limit, and its results."""

from launcher import WorkerFailed
from output import label, say


class Lab:
    def __init__(self, part, options, launcher, result, share, allocators):
        self.part, self.options, self.launcher = part, options, launcher
        self.result, self.share, self.allocators = result, share, allocators
        self.tiny = options.quick or options.device == "cpu"

    def skip(self, reason):
        self.result.skip(reason)

    def ask(self, allocator, job, seconds, then=None):
        """As Launcher.ask."""
        full = {"part": self.part, "tiny": self.tiny, **job}
        return self.launcher.ask(allocator, full, seconds, then)

    def answer(self, labels, allocator, job, seconds, then=None):
        """Asks; a failure becomes a row, and the answer None."""
        try:
            said = self.ask(allocator, job, seconds, then)
        except WorkerFailed as failure:
            self.failed(labels, failure)
            return None
        say(f"{self.part}: {label(labels)}: done, {self.share.left():.0f} s left")
        return said

    def failed(self, labels, failure):
        self.result.add({**labels, "error": str(failure)})
        say(f"{self.part}: {label(labels)}: FAILED: {failure}")

    def row(self, labels, allocator, job, seconds, then=None):
        """Asks, and adds the answer as a row; returns it, or None for a failure."""
        labels = {**labels, "allocator": allocator}
        said = self.answer(labels, allocator, job, seconds, then)
        return None if said is None else self.result.add({**labels, **said})

    def compare(self, cases, applies=lambda case, allocator: None):
        """Every case with every allocator, each case whole or not at all; all allocators make as
        many steps as the first. applies(case, allocator): why a pair makes no sense, or None."""
        jobs_left = len(cases) * len(self.allocators)
        for index, case in enumerate(cases):
            if self.share.spent():
                self.skip(f"{label(case)}: no time was left")
                continue
            steps, chosen = None, []
            for allocator in self.allocators:
                reason = applies(case, allocator)
                if reason:
                    self.skip(f"{label(case)} {allocator}: {reason}")
                    jobs_left -= 1
                else:
                    chosen.append(allocator)
            after = self.allocators[0] if index + 1 < len(cases) else None
            for allocator, then in zip(chosen, [*chosen[1:], after]):
                job = {**case, "steps": steps}
                row = self.row(case, allocator, job, self.share.for_one_of(jobs_left), then)
                jobs_left -= 1
                if steps is None and row is not None:
                    steps = row.get("steps")
