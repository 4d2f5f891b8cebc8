"""Tests of the cost table's page, without matplotlib: python3 -m unittest discover -s tools/gpu -p '*_test.py'"""
import io
import json
import pathlib
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cost_page  # noqa: E402

MIB = 1 << 20


def row(call, against, x, median=1000.0, p99=2000.0, n=10, threads=1, **more):
    return dict(call=call, against=against, x=x, threads=threads, n=n,
                median_ns=median if n else None, p99_ns=p99 if n else None, **more)


def table(rows=(), facts=(), **more):
    return dict(format="stillmap-costs 1", device="Some GPU", driver="CUDA 13.0", commit="abc",
                rows=list(rows), facts=list(facts), **more)


def fact(name, value, text):
    return dict(name=name, value=value, text=text)


class Page(unittest.TestCase):
    def test_has_a_column_for_each_size_and_a_line_for_each_call(self):
        text = cost_page.page(table([
            row("cuMemCreate", "size", 2 * MIB, 29000, 381000),
            row("cuMemCreate", "size", 1024 * MIB, 1500000, 2e6, n=5),
            row("cuMemMap", "size", 2 * MIB, 1500, 2500),
        ]), [])
        self.assertIn("| call | 2 MiB | 1 GiB | samples |", text)
        self.assertIn("| cuMemCreate | 29.0 / 381 | 1,500 / 2,000 | 5–10 |", text)
        self.assertIn("| cuMemMap | 1.50 / 2.50 | – | 10 |", text)

    def test_links_the_plots_that_there_are_and_no_others(self):
        rows = [row("cuMemMap", "size", 2 * MIB), row("cuMemMap", "threads", 2, threads=2)]
        text = cost_page.page(table(rows), ["costs_size.svg"])
        self.assertIn("(costs_size.svg)", text)
        self.assertNotIn("(costs_threads.svg)", text)

    def test_says_that_hostcuda_is_no_gpu(self):
        self.assertIn("no GPU", cost_page.page(table(hostcuda="profile=h200"), []))
        self.assertNotIn("no GPU", cost_page.page(table(), []))

    def test_has_a_refusal_and_no_time_for_it(self):
        text = cost_page.page(table([
            row("cuMemCreate", "size", 512 * MIB, n=0, error="CUDA_ERROR_OUT_OF_MEMORY")]), [])
        self.assertIn("- cuMemCreate at 512 MiB (against size): CUDA_ERROR_OUT_OF_MEMORY", text)
        self.assertNotIn("## Against the size", text)

    def test_has_what_waits_in_one_table_and_not_among_the_words(self):
        text = cost_page.page(table(facts=[
            fact("waits.non-blocking.cuMemFree", "waits", "a sentence about cuMemFree"),
            fact("waits.blocking.cuMemFree", "does not wait", "another"),
            fact("ceiling.mappings", 520000, "520000 mappings")]), [])
        self.assertIn("| cuMemFree | **waits** | does not wait |", text)
        self.assertNotIn("a sentence about cuMemFree", text)
        self.assertIn("- 520000 mappings", text)

    def test_tells_a_call_that_is_legal_from_one_that_ends_the_capture(self):
        text = cost_page.page(table(facts=[
            fact("capture.global.here.cuMemMap", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
                 "the capture is lost: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
            fact("capture.relaxed.here.cuMemMap", "CUDA_SUCCESS", "the capture survives")]), [])
        line = next(l for l in text.splitlines() if l.startswith("| cuMemMap |"))
        cells = [c.strip() for c in line.strip("|").split("|")]
        self.assertEqual(cells[1], "STREAM_CAPTURE_UNSUPPORTED, LOST")
        self.assertEqual(cells[7], "yes")

    def test_a_bar_in_a_text_does_not_end_its_cell(self):
        text = cost_page.page(table([row("a|b", "size", MIB), row("a|b", "size", 2 * MIB)]), [])
        self.assertIn("| a\\|b |", text)


class Program(unittest.TestCase):
    def run_on(self, content, **beside):
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            (here / "costs.json").write_text(content, encoding="utf-8")
            for name, text in beside.items():
                (here / (name + ".txt")).write_text(text, encoding="utf-8")
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                status = cost_page.main([str(here / "costs.json"), "--out", str(here / "a" / "b")])
            made = here / "a" / "b" / "costs.md"
            return status, made.read_text(encoding="utf-8") if made.exists() else "", err.getvalue()

    def setUp(self):
        self.matplotlib = sys.modules.get("matplotlib", self)
        sys.modules["matplotlib"] = None  # importing it fails

    def tearDown(self):
        del sys.modules["matplotlib"]
        if self.matplotlib is not self:
            sys.modules["matplotlib"] = self.matplotlib

    def test_without_matplotlib_it_says_that_there_are_no_plots(self):
        status, text, _ = self.run_on(json.dumps(table([row("cuMemMap", "size", MIB)])))
        self.assertEqual(status, 0)
        self.assertIn("There are no plots: matplotlib", text)
        self.assertNotIn(".svg", text)

    def test_shows_the_cost_table_that_lies_beside(self):
        _, text, _ = self.run_on(json.dumps(table()), costs="cuMemMap 1500 0.000\n")
        self.assertIn("```\ncuMemMap 1500 0.000\n```", text)

    def test_what_is_no_table_is_refused_in_one_line(self):
        for wrong in ("{", "[]", '{"format":"other"}', '{"format":"stillmap-costs 1"}',
                      '{"format":"stillmap-costs 1","rows":[{}],"facts":[]}'):
            status, text, err = self.run_on(wrong)
            self.assertEqual((status, text), (1, ""), wrong)
            self.assertEqual(len(err.splitlines()), 1, wrong)


if __name__ == "__main__":
    unittest.main()
