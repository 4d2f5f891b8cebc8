"""Tests of the GPU check without a GPU: results of programs are simulated."""
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOOLS / "gpu"), str(TOOLS)]
from checking import claims, machine, parts, report, results, running, session  # noqa: E402


def tests_of(passed, failed=(), skipped=0):
    case = {"classname": "growth", "status": "RUN", "result": "COMPLETED"}
    cases = [dict(case, name="p%d" % i) for i in range(passed)]
    cases += [dict(case, name=name, failures=[{"failure": "no"}]) for name in failed]
    cases += [dict(case, name="s%d" % i, result="SKIPPED", skip_reason="no GPU") for i in range(skipped)]
    return {"testsuites": [{"name": "growth", "testsuite": cases}]}


def case(name, **numbers):
    return dict({"name": name, "real_time": 1.0, "time_unit": "us"}, **numbers)


def part(name, jobs, began=0.0):
    about = {"gpu": "a GPU", "driver": "cuda", "commit": "abc", "doctor": "fine", "quick": False}
    return {"format": results.FORMAT, "part": name, "began": results.stamp(began), "seconds": 1,
            "machine": about, "jobs": jobs}


def job(name, kind, found, **more):
    return dict({"name": name, "kind": kind, "passed": 1, "failed": 0, "skipped": 0, "why": [],
                 "results": found, "seconds": 1, "status": 0}, **more)


def benchmarks(name, *cases):
    return job(name, "benchmark", {"context": {}, "benchmarks": list(cases)})


class InAFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def program(self, text):
        path = self.out / "program"
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)
        return str(path)

    def run_it(self, text, kind="tests", seconds=30, until=None):
        made = parts.Job("it", kind, [self.program(text)], seconds, {"MINE": "set"})
        return running.run(made, dict(os.environ), self.out, until or time.time() + 60)


class Running(InAFolder):
    def test_counts_what_googletest_says(self):
        (self.out / "say").write_text(json.dumps(tests_of(3, ["bad"], 2)))
        done = self.run_it('cp "%s/say" "${1#--gtest_output=json:}"; exit 1' % self.out)
        self.assertEqual((done["passed"], done["failed"], done["skipped"]), (3, 1, 2))
        self.assertEqual(done["why"], ["growth.bad: no"])
        self.assertFalse((self.out / "it.json").exists(), "it is in the part's file")

    def test_counts_benchmarks_that_cannot_run_as_skipped(self):
        found = {"benchmarks": [case("a"), case("b", error_occurred=True, error_message="no VMM")]}
        (self.out / "say").write_text(json.dumps(found))
        done = self.run_it('cp "%s/say" "${1#--benchmark_out=}"' % self.out, "benchmark")
        self.assertEqual((done["passed"], done["failed"], done["skipped"]), (1, 0, 1))

    def test_a_program_that_ends_badly_has_failed_in_its_own_words(self):
        done = self.run_it("echo one; echo it is broken; exit 3")
        self.assertEqual(done["failed"], 1)
        self.assertEqual(done["why"], ["ended with status 3: it is broken"])

    def test_nothing_found_is_a_failure(self):
        self.assertEqual(self.run_it("exit 0")["failed"], 1)
        self.assertEqual(self.run_it("exit 0", "benchmark")["failed"], 1)

    def test_a_program_that_does_not_end_is_ended_with_what_it_started(self):
        done = self.run_it('sleep 600 & echo $! >"%s/child"; wait' % self.out, seconds=2)
        self.assertEqual((done["status"], done["failed"]), ("out of time", 1))
        child = int((self.out / "child").read_text())
        for _ in range(50):
            if not pathlib.Path("/proc/%d" % child).exists():
                break
            if pathlib.Path("/proc/%d/stat" % child).read_text().split()[2] == "Z":
                break
            time.sleep(0.1)
        else:
            self.fail("its child lives on")

    def test_of_a_program_that_died_the_tests_before_count(self):
        done = self.run_it("""
echo "[ RUN      ] a/growth.one/x"; echo "[       OK ] a/growth.one/x (3 ms)"
echo "[ RUN      ] growth.two"; echo "[  FAILED  ] growth.two (1 ms)"
echo "[ RUN      ] growth.three"; echo "[  SKIPPED ] growth.three (1 ms)"
echo "[ RUN      ] growth.four"; kill -SEGV $$""")
        self.assertEqual((done["passed"], done["failed"], done["skipped"]), (1, 2, 1))
        self.assertEqual(done["why"], ["growth.two: see the log", "growth.four: it was running"])
        self.assertEqual(done["status"], -11)

    def test_of_a_benchmark_that_ran_out_of_time_the_cases_before_count(self):
        whole = json.dumps({"context": {"a": 1}, "benchmarks": [case("a"), case("b")]}, indent=1)
        for cut in (whole[:-len("\n ]\n}")], whole[:-len("\n ]\n}")] + ",\n"):
            (self.out / "say").write_text(cut)
            done = self.run_it('cp "%s/say" "${1#--benchmark_out=}"; sleep 60' % self.out, "benchmark",
                               seconds=2)
            self.assertEqual((done["passed"], done["failed"], done["status"]), (2, 1, "out of time"))
            self.assertIn("ended with its time", done["why"][0])
            self.assertEqual([c["name"] for c in done["results"]["benchmarks"]], ["a", "b"])

    def test_what_it_prints_is_not_where_it_may_write(self):
        # costs.txt, the cost table, was overwritten by what the program `costs` had printed.
        self.run_it('echo mine >"%s/it.txt"; echo printed' % self.out, "json")
        self.assertEqual((self.out / "it.txt").read_text(), "mine\n")
        self.assertEqual((self.out / "it.log").read_text(), "printed\n")

    def test_a_program_that_is_not_there(self):
        made = parts.Job("it", "tests", [str(self.out / "nothing")], 5, {})
        done = running.run(made, dict(os.environ), self.out, time.time() + 5)
        self.assertEqual((done["status"], done["failed"]), ("does not start", 1))

    def test_what_the_part_has_no_time_for_is_skipped_and_says_so(self):
        done = self.run_it("exit 0", until=time.time())
        self.assertEqual((done["failed"], done["skipped"]), (0, 1))
        self.assertEqual(done["unable"], "the part's time was over")

    def test_what_is_not_installed_is_skipped_and_says_so(self):
        made = parts.Job("it", "json", ["/nothing"], 5, absent="PyTorch is not installed")
        done = running.run(made, {}, self.out, time.time() + 5)
        self.assertEqual((done["failed"], done["skipped"], done["unable"]),
                         (0, 1, "PyTorch is not installed"))

    def test_a_job_has_its_own_environment(self):
        done = self.run_it('[[ $MINE == set ]]', "json")
        self.assertEqual((done["passed"], done["failed"]), (1, 0))


    def test_with_less_than_its_time_a_program_that_is_stopped_has_not_failed(self):
        (self.out / "say").write_text(json.dumps({"benchmarks": [case("a")]}))
        made = parts.Job("it", "benchmark", [self.program(
            'cp "%s/say" "${1#--benchmark_out=}"; sleep 60' % self.out)], 20)
        done = running.run(made, dict(os.environ), self.out, time.time() + 60, pace=0.1)
        self.assertEqual((done["passed"], done["failed"], done["skipped"]), (1, 0, 1))
        self.assertEqual(done["unable"], "stopped after 2 s of at most 20; what it had measured is kept")
        self.assertFalse(running.is_whole(done))

    def test_a_program_that_ends_by_itself_is_told_how_long_it_has(self):
        made = parts.Job("it", "json", [self.program('echo "$1"'), "{seconds}"], 60)
        running.run(made, dict(os.environ), self.out, time.time() + 600, pace=0.5)
        self.assertEqual((self.out / "it.log").read_text(), "25\n")


class Sessions(InAFolder):
    WHERE = machine.Machine({"gpu": "a GPU", "commit": "abc"}, dict(os.environ))

    def part(self, name, *jobs, seconds=60):
        return parts.Part(name, "", seconds, lambda here, out, given: list(jobs))

    def job(self, name, text):
        path = self.out / ("program_" + name)
        path.write_text("#!/bin/bash\necho %s >>%s/ran\n%s\n" % (name, self.out, text))
        path.chmod(0o755)
        return parts.Job(name, "json", [str(path)], 60)

    def run_it(self, *wanted, minutes=1.0, where=None):
        given = type("given", (), {"minutes": minutes})
        session.run(list(wanted), where or self.WHERE, self.out, self.out, given)
        ran = (self.out / "ran").read_text().split() if (self.out / "ran").exists() else []
        (self.out / "ran").unlink(missing_ok=True)
        return ran

    def test_go_on_where_an_earlier_one_ended(self):
        one = self.part("one", self.job("a", ""), self.job("b", "exit 1"))
        self.assertEqual(self.run_it(one), ["a", "b"])
        two = self.part("two", self.job("c", ""))
        self.assertEqual(self.run_it(one, two), ["c"], "what failed has been measured, too")
        self.assertEqual(self.run_it(one, two), [])
        other = machine.Machine(dict(self.WHERE.about, commit="def"), dict(os.environ))
        self.assertEqual(self.run_it(two, where=other), ["c"])
        self.assertEqual(self.run_it(one, two, minutes=None), ["a", "b", "c"])

    def test_a_job_that_was_stopped_runs_again_after_what_has_not_begun(self):
        slow, quick, other = self.job("slow", "sleep 60"), self.job("quick", ""), self.job("other", "")
        # 20 s for 600 planned, so the first part has two of its sixty.
        self.assertEqual(self.run_it(self.part("one", slow, quick), self.part("two", other, seconds=540),
                                     minutes=(session.REPORT_SECONDS + 20) / 60), ["slow", "other"])
        self.assertEqual(self.run_it(self.part("one", slow._replace(command=["true"]), quick)), ["quick"])
        done = {job["name"]: job["status"] for part in results.gather(self.out) for job in part["jobs"]}
        self.assertEqual(done, {"slow": 0, "quick": 0, "other": 0})

    def test_each_result_is_on_disk_before_the_next_program_starts(self):
        looks = self.job("looks", 'grep -q \'"name": "first"\' %s/part_one.json && [[ -s %s/results.tar.gz ]]' % (
            self.out, self.out))
        self.run_it(self.part("one", self.job("first", ""), looks))
        self.assertEqual([job["status"] for job in results.gather(self.out)[0]["jobs"]], [0, 0])


class Results(InAFolder):
    def test_parts_of_different_runs_come_together_in_their_order(self):
        where = machine.Machine({"gpu": "a GPU"}, {})
        results.write(self.out, "second", where, 2000.0, [job("b", "tests", None, passed=2)])
        results.write(self.out, "first", where, 1000.0, [job("a", "tests", None, failed=1)])
        found = results.gather(self.out)
        self.assertEqual([p["part"] for p in found], ["first", "second"])
        self.assertEqual(results.summary(results.count(found)), "3 passed, 1 failed")
        (self.out / "costs.json").write_text('{"rows": []}')
        results.write_all(self.out, found)
        self.assertEqual(json.loads((self.out / "check.json").read_text())["costs"], {"rows": []})

    def test_a_part_that_runs_again_replaces_its_results(self):
        where = machine.Machine({}, {})
        for passed in (1, 5):
            results.write(self.out, "one", where, 0.0, [job("a", "tests", None, passed=passed)])
        self.assertEqual(results.count(results.gather(self.out))["passed"], 5)


class Claims(unittest.TestCase):
    GROWN = ("growth", [
        benchmarks("driver_bench", case("MemMap/MiB:2/iterations:5", real_time=2.0),
                   case("MemSetAccess/MiB:2/iterations:5", real_time=38.0)),
        benchmarks("growth_bench", case("grow_by_one_page/idle/MiB:1024/iterations:200", median_us=44.0),
                   case("grow_while_computing/warm/ahead_MiB:16/x", median_us=0.5),
                   case("grow_buffer/backed_in_place_warm/GiB:32/step_MiB:1024/x", real_time=2.0,
                        peak_MiB=32768),
                   case("grow_buffer/backed_copying/GiB:32/step_MiB:1024/x", real_time=80.0,
                        peak_MiB=65536))])

    def claim(self, gathered, words, files=None):
        found = [c for c in claims.all_of(gathered, files or {}) if words in c.what]
        self.assertEqual(len(found), 1, words)
        return found[0]

    def test_are_computed_from_what_was_measured(self):
        gathered = [part(*self.GROWN)]
        page = self.claim(gathered, "2 MiB from a warm pool")
        self.assertAlmostEqual(page.value, 1.1)
        self.assertTrue(page.holds)
        self.assertTrue(self.claim(gathered, "mapped ahead").holds)
        slow = self.claim(gathered, "times faster")
        self.assertAlmostEqual(slow.value, 40)
        self.assertEqual(slow.verdict(), "**no**")
        self.assertTrue(self.claim(gathered, "peak memory").holds)

    def test_what_was_not_measured_neither_holds_nor_fails(self):
        for claim in claims.all_of([], {}):
            self.assertIsNone(claim.holds, claim.what)
            self.assertEqual((claim.text(), claim.verdict()), ("not measured", ""))

    def test_pytorch_is_judged_by_the_worst_case(self):
        def row(model, allocator, **numbers):
            return dict({"model": model, "lengths": "fixed", "allocator": allocator}, **numbers)
        files = {
            "torch_training": {"rows": [
                row("gpt2", "default", median_seconds=1.0),
                row("gpt2", "expandable", utilisation=0.95),
                row("gpt2", "stillmap", median_seconds=1.005, utilisation=0.99,
                    calls_per_step={"growths": 0.0, "pages_moved": 0.0}),
                row("llama", "default", median_seconds=1.0),
                row("llama", "expandable", utilisation=0.99),
                row("llama", "stillmap", median_seconds=1.02, utilisation=0.985),
                row("other", "stillmap", error="out of memory")]},
            "torch_largest_batch": {"rows": [
                row("gpt2", "default", largest=40), row("gpt2", "async", largest=44),
                row("gpt2", "stillmap", largest=45)]}}
        self.assertEqual(self.claim([], "expandable segments has less", files).text(), "0.99")
        self.assertFalse(self.claim([], "less that of", files).holds)
        self.assertFalse(self.claim([], "time of a step", files).holds)
        self.assertTrue(self.claim([], "texts of one length", files).holds)
        files["torch_training"]["rows"][2]["calls_per_step"]["growths"] = 0.5
        self.assertFalse(self.claim([], "texts of one length", files).holds)
        self.assertTrue(self.claim([], "largest batch", files).holds)

    def test_a_case_that_could_not_run_is_not_measured(self):
        broken = benchmarks("handoff_bench", case("handoff/100_GiB/x", error_occurred=True,
                                                  error_message="too little device memory"))
        self.assertIsNone(self.claim([part("checkpoint", [broken])], "100 GiB").value)


class Report(InAFolder):
    def test_says_what_did_not_run(self):
        torch = job("torch", "json", None, passed=0, skipped=1, unable="PyTorch is not installed")
        report.write(self.out, [part("torch", [torch])], self.out)
        self.assertIn("- torch: PyTorch is not installed", (self.out / "report.md").read_text())

    def test_says_what_failed_what_holds_and_that_hostcuda_is_no_gpu(self):
        grown = part(*Claims.GROWN)
        grown["machine"]["driver"] = "host"
        tried = part("tests", [job("gpu", "tests", tests_of(1, ["bad"]), failed=1, why=["growth.bad"])])
        report.write(self.out, [tried, grown], self.out)
        text = (self.out / "report.md").read_text()
        for words in ("growth.bad", "| at most 1.15 | 1.1 | yes |", "no number here says anything",
                      "1 failed", "MemSetAccess/MiB:2", "not measured"):
            self.assertIn(words, text)

    def test_conformance_has_a_page_of_its_own(self):
        found = {"testsuites": [{"testsuite": [{
            "classname": "reserve", "name": "a02_a_multiple", "status": "RUN", "result": "COMPLETED",
            "a02": "0, aligned"}]}]}
        report.write(self.out, [part("conformance", [job("conformance", "tests", found)])], self.out)
        page = (self.out / "conformance.md").read_text()
        self.assertIn("| 2 | Reserve(page multiple) → 0, non-zero | D | passed | 0, aligned |", page)
        self.assertIn("not run", page)


class Parts(unittest.TestCase):
    def test_fit_into_25_minutes(self):
        self.assertLessEqual(sum(p.seconds for p in parts.ALL), 25 * 60)

    def test_the_time_that_is_there_is_shared(self):
        self.assertEqual(parts.pace(300, [400, 200]), 0.5)
        self.assertEqual(parts.pace(3000, [400, 200]), 1.0)
        self.assertEqual(parts.pace(-1, [400]), 0.0)

    def test_each_fits_into_a_call_of_ten_minutes(self):
        for p in parts.ALL:
            self.assertLessEqual(p.seconds, 10 * 60, p.name)


if __name__ == "__main__":
    unittest.main()
