"""Writes the readable report of all parts that ran, and the parts' own pages."""
import pathlib

import bench_table
import conformance_table
import cost_page
from checking import claims, plots, results

HEAD = ("commit", "machine", "processor", "processors", "driver", "gpu")


def heading(gathered):
    """Of each machine that a part ran on; mostly there is one."""
    lines, said = [], []
    for part in gathered:
        about = {key: part["machine"].get(key, "unknown") for key in HEAD}
        if about in said:
            continue
        said.append(about)
        lines += ["- %s: %s" % item for item in about.items()]
        if part["machine"].get("quick"):
            lines.append("- quick: no number here means anything")
        if about["driver"] == "host":
            lines.append("- hostcuda is no GPU: no number here says anything about one")
        lines.append("")
    return lines


def overview(gathered):
    lines = ["| part | program | passed | failed | skipped | time | began |",
             "|---|---|---|---|---|---|---|"]
    for part in gathered:
        for job in part["jobs"]:
            lines.append("| %s | %s | %d | %d | %d | %.0f s | %s |" % (
                part["part"], job["name"], job["passed"], job["failed"], job["skipped"],
                job["seconds"], part["began"]))
    return lines + [""]


def promised(gathered, files):
    lines = ["## What is promised", "", "| | limit | measured | holds |", "|---|---|---|---|"]
    for claim in claims.all_of(gathered, files):
        lines.append("| %s | %s | %s | %s |" % (claim.what, claim.limit, claim.text(),
                                                claim.verdict()))
    return lines + [""]


def what_failed(gathered):
    failed = ["- %s: %s" % (job["name"], why) for part in gathered for job in part["jobs"]
              for why in job["why"]]
    return ["## Failed", ""] + failed + [""] if failed else []


def what_did_not_run(gathered):
    unable = ["- %s: %s" % (job["name"], job["unable"]) for part in gathered for job in part["jobs"]
              if job.get("unable")]
    return ["## Not run", ""] + unable + [""] if unable else []


def benchmarks(gathered, drawn):
    lines = []
    for part in gathered:
        for job in part["jobs"]:
            if job["kind"] != "benchmark" or not job["results"]:
                continue
            lines += ["## %s" % job["name"], ""]
            lines += ["![%s](%s)" % (job["name"], picture) for picture in drawn.get(job["name"], [])]
            lines += ["", bench_table.tables(job["results"], markdown=True), ""]
    return lines


def printed(gathered, out):
    """What programs with a form of their own have said."""
    lines = []
    for part in gathered:
        for job in part["jobs"]:
            text = out / (job["name"] + ".log")
            if job["kind"] == "json" and text.exists():
                lines += ["## %s" % job["name"], "", "```",
                          text.read_text("utf-8", "replace").strip(), "```", ""]
    return lines


def conformance(gathered, out, here):
    """conformance.md; the expectations are where the bundle or the checkout has them."""
    for part in gathered:
        for job in part["jobs"]:
            if job["name"] != "conformance" or not job["results"]:
                continue
            expected = [p for p in (here / "expectations.md", conformance_table.README)
                        if pathlib.Path(p).exists()]
            table = conformance_table.read_expectations(expected[0]) if expected else {}
            cases = list(conformance_table.cases_of_found(job["results"]))
            (out / "conformance.md").write_text(
                conformance_table.page(cases, table) + "\n", encoding="utf-8")
            return ["What the driver does, number by number: [conformance.md](conformance.md)", ""]
    return []


def write(out, gathered, here):
    gpu = gathered[-1]["machine"]["gpu"]
    drawn = plots.draw(out, gathered)
    lines = ["# Stillmap on %s" % gpu, ""] + heading(gathered)
    lines += [results.summary(results.count(gathered)), ""]
    lines += overview(gathered) + what_failed(gathered) + what_did_not_run(gathered)
    lines += promised(gathered, results.extra(out))
    lines += conformance(gathered, out, here)
    costs = out / "costs.json"
    if costs.exists() and cost_page.main([str(costs), "--out", str(out)]) == 0:
        lines += ["What each call costs: [costs.md](costs.md)", ""]
    lines += benchmarks(gathered, drawn) + printed(gathered, out)
    lines += ["## What this driver can do", "", "```", gathered[-1]["machine"]["doctor"], "```", ""]
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
