"""Tests of mutants.py: what is mutated, what is left alone, and what a mutant does when it runs."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mutation import operators, suite, tree  # noqa: E402
from mutation.source import CannotParse, tokenize  # noqa: E402

IS = "stillmap_mutants::is(7)"


def body(statements):
    return "void f() {\n  %s\n}\n" % statements


def found(text):
    return [(c.operator, c.before, c.after) for c in operators.find_candidates(text)]


def mutated(statements, operator, nth=0):
    """The statements with one mutant, number 7, in them."""
    text = body(statements)
    candidate = [c for c in operators.find_candidates(text) if c.operator == operator][nth]
    written = operators.write_mutants(text, "f.cpp", [(7, candidate)])
    return written.split('#line 1 "f.cpp"\n')[1][len("void f() {\n  "):-len("\n}\n")]


class Tokens(unittest.TestCase):
    def test_comments_strings_and_directives_are_no_code(self):
        text = 'a /* + */ "+ \\" +" // +\n#define x + \\\n  +\n  R"(+ " +)" \'+\' 1\'000 0x1p-3 b\n'
        self.assertEqual([t.text for t in tokenize(text)],
                         ["a", '"+ \\" +"', 'R"(+ " +)"', "'+'", "1'000", "0x1p-3", "b"])

    def test_lines(self):
        self.assertEqual([(t.text, t.line) for t in tokenize("a\n/*\n*/ b\n#if x\n\nc\n#endif\nd")],
                         [("a", 1), ("b", 3), ("c", 6), ("d", 8)])

    def test_what_is_between_if_and_endif(self):
        tokens = tokenize("a\n#if x\nb\n#else\nc\n#endif\nd")
        self.assertEqual([t.text for t in tokens if t.conditional], ["b", "c"])

    def test_brackets_that_do_not_match(self):
        for text in ("void f() {", "void f() }", "f(]"):
            with self.assertRaises(CannotParse):
                operators.find_candidates(text)


class Edits(unittest.TestCase):
    def test_relational(self):
        self.assertEqual(
            mutated("x = f<a>(b) < c;", "relational"),
            "x = f<a>(b) < stillmap_mutants::operation<7, std::less_equal<>>() < c;")
        self.assertEqual(
            mutated("return a == b;", "relational"),
            "return a == stillmap_mutants::operation<7, std::not_equal_to<>>() == b;")

    def test_arithmetic(self):
        self.assertEqual(mutated("return a * b - c;", "arithmetic", 1),
                         "return a * b - stillmap_mutants::operation<7, std::plus<>>() - c;")
        self.assertEqual(mutated("a += b;", "arithmetic"),
                         "a += stillmap_mutants::operation<7, stillmap_mutants::minus_assign>() "
                         "+= b;")

    def test_logical(self):
        self.assertEqual(
            mutated("return a && b;", "logical"),
            "return ({0} != (({0} != static_cast<bool>(a)) && "
            "({0} != static_cast<bool>(b))));".format(IS))

    def test_logical_takes_its_operands_and_no_more(self):
        self.assertEqual(
            mutated("x = c || a && f(b, c) && d == e || g;", "logical", 1),
            "x = c || ({0} != (({0} != static_cast<bool>(a)) && "
            "({0} != static_cast<bool>(f(b, c))))) && d == e || g;".format(IS))
        self.assertEqual(
            mutated("g(z, a && b || c ? d : e);", "logical", 1),
            "g(z, ({0} != (({0} != static_cast<bool>(a && b)) || ({0} != static_cast<bool>(c)))) "
            "? d : e);".format(IS))

    def test_condition(self):
        self.assertEqual(mutated("if (auto s = f(); !s) g();", "condition"),
                         "if (auto s = f(); %s != static_cast<bool>(!s)) g();" % IS)
        self.assertEqual(mutated("do x(); while (a);", "condition"),
                         "do x(); while (%s != static_cast<bool>(a));" % IS)

    def test_call(self):
        self.assertEqual(mutated("if (a) b(1); else (void)c.d<e>()->f[2](g);", "call", 1),
                         "if (a) b(1); else if (%s) {} else (void)c.d<e>()->f[2](g);" % IS)

    def test_assignment(self):
        self.assertEqual(mutated("*a->b[1] = c;", "assignment"),
                         "if (%s) {} else *a->b[1] = c;" % IS)

    def test_return(self):
        self.assertEqual(mutated("return true;", "return"), "return (%s ? false : true);" % IS)

    def test_literal(self):
        self.assertEqual(mutated("f(0u);", "literal"), "f((%s ? 1u : 0u));" % IS)

    def test_step(self):
        self.assertEqual(mutated("f(a->b[i]++);", "step"), "f((%s ? a->b[i]-- : a->b[i]++));" % IS)
        self.assertEqual(mutated("--a;", "step"), "(%s ? ++a : --a);" % IS)

    def test_in_a_lambda_the_statements_are_mutated(self):
        self.assertEqual(mutated("each([&, n = 0](int x) -> T<U> { f(x); });", "call", 1),
                         "each([&, n = 0](int x) -> T<U> { if (%s) {} else f(x); });" % IS)
        self.assertEqual([f[0] for f in found(body("each([] { f(x); });"))], ["call", "call"])

    def test_several_mutants_keep_the_lines(self):
        text = body("if (a < b &&\n    c) {\n    f([&] {\n    return x + 1; });\n  }\n  return;")
        chosen = {c.statement: c for c in operators.find_candidates(text)}.values()
        self.assertEqual(len(chosen), 3)
        written = operators.write_mutants(text, "f.cpp", list(enumerate(chosen, 1)))
        self.assertEqual(written.split('#line 1 "f.cpp"\n')[1].count("\n"), text.count("\n"))


class LeftAlone(unittest.TestCase):
    def assert_nothing(self, text):
        self.assertEqual(found(text), [])

    def test_statements(self):
        for statement in (
                "lock_guard lock(mutex);", "const T<a < b> x(y);", "using x = y<0>;", "T *p{q};",
                "static_assert(a < 1);", "static constexpr int x = a + 1;", "std::byte head[1];",
                "int x[0] = {};", "switch (x) { case 0: break; }", "x<0>;", "break;", "T &&x(y);",
                "enum e { a = 1 };", "struct s { int x = 0; };", "auto *const p{q};",
                'auto x{"a" + b};', "[[maybe_unused]] T x{sizeof(T[1])};", "if (auto x = y) {}",
                "while (true) {}", "if constexpr (a < b) {}", "for (const T &x : y) {}"):
            self.assert_nothing(body(statement))

    def test_outside_of_functions(self):
        for text in ("namespace a { const int x = 1 + 1; }", "class a { int x_{0}; int y = 1; };",
                     "template <int N = 0> struct a : b<1> {};", "enum class a { b = 1 };",
                     "int a(int b = 0);", "consteval int a() { return 1 + b; }",
                     "#define A(x) f(x + 1);\n", "void f() {\n#ifdef X\n  g(1);\n#endif\n}"):
            self.assert_nothing(text)

    def test_bodies_are_found(self):
        for text in ("namespace a { class b : c { public: bool d() const { return true; } }; }",
                     "a::a(int b) : c_{b}, d_(1) { return true; }",
                     "template <class T> auto f() -> r<T> { return true; }",
                     "struct a { a &operator=(a b) { return true; } };",
                     "constexpr bool f() noexcept { return true; }",
                     'extern "C" { bool f() { return true; } }',
                     "bool f() { struct s { bool g() { return true; } }; }"):
            self.assertEqual(found(text), [("return", "true", "false")], text)


# Statements, which of their mutants, what they say, and what they say with the mutant on.
STATEMENTS = (
    ("say(a < 2);", "relational", 0, "0", "1"),
    ("say(a < b + 1);", "relational", 1, "1", "0"),
    ("say(m == amount{5});", "relational", 0, "1", "0"),
    ("say(p != nullptr);", "relational", 0, "1", "0"),
    ("say(a - 1 - b);", "arithmetic", 1, "-1", "3"),
    ("say(7 * 2 / a);", "arithmetic", 0, "7", "1"),
    ("say(*(text + 2 - 1));", "arithmetic", 1, "98", "0"),
    ("m += amount{3}; say(m.n);", "arithmetic", 0, "15", "1"),
    ("say(a == 2 && b == 3);", "logical", 0, "0", "1"),
    ("say(p && *p == 8);", "logical", 0, "1", "1"),
    ("say(a == 2 || b == 3);", "logical", 0, "1", "0"),
    ("bool x = never && count(); say(x);", "logical", 0, "0", "counted 1"),
    ("bool x = !never || count(); say(x);", "logical", 0, "1", "counted 1"),
    ("if (p) say(1); else say(2);", "condition", 0, "1", "2"),
    ("if (auto q = p.get(); q && !never) say(1); else say(2);", "condition", 0, "1", "2"),
    ("if (never) say(1); else if (a) say(2); else say(3);", "call", 1, "2", ""),
    ("a = 9; say(a);", "assignment", 0, "9", "2"),
    ("say([&] { return true; }());", "return", 0, "1", "0"),
    ("say(a + 0);", "literal", 0, "2", "3"),
    ("for (int i = 5; i < 7; i++) { say(i); if (i < 5) break; }", "step", 0, "5 6", "5 4"),
    ("say(a++ + --m.n);", "step", 1, "6", "8"),
    ("say(constant);", "", 0, "4", "4"),
    ("say(larger(b, a + 1));", "", 0, "3", "3"),
)

PROGRAM = r"""
#include <cstdio>
#include <memory>
constexpr int larger(int a, int b) {
  return a < b ? b : a;
}
constexpr int constant = larger(3, 4);
static_assert(constant == 4);
void say(long x) { std::printf("%ld ", x); }
bool count() { std::printf("counted "); return true; }
struct amount {
  int n = 5;
  bool operator==(const amount &) const = default;
  amount &operator+=(amount o) { n = n * o.n; return *this; }
  amount &operator-=(amount o) { n = n / o.n; return *this; }
};
using pointer = std::unique_ptr<int>;
template <class F>
void run(F f) { f(2, 2, amount(), std::make_unique<int>(8), "abc", false); std::puts(""); }
int main() {
"""


@unittest.skipUnless(shutil.which("g++"), "no g++")
class Running(unittest.TestCase):
    """One mutant in each of the statements, and one in the constexpr function."""

    @classmethod
    def setUpClass(cls):
        text, chosen = PROGRAM, {}
        for statement, *_ in STATEMENTS:
            text += "  run([&](int a, int b, amount m, pointer p, const char *text, bool never) {\n"
            text += statement + "\n  });\n"
        text += "}\n"
        candidates = operators.find_candidates(text)
        for statement, operator, nth, *_ in STATEMENTS:
            line = text[:text.index("\n%s\n" % statement)].count("\n") + 2
            here = [c for c in candidates if c.line == line and c.operator == operator]
            if operator:
                chosen[statement] = here[nth]
        numbered = [(n, chosen[s[0]]) for n, s in enumerate(STATEMENTS) if s[1]]
        cls.constexpr = len(STATEMENTS)
        in_larger = next(c for c in candidates if c.before == "<" and c.after == ">=")
        numbered.append((cls.constexpr, in_larger))
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = pathlib.Path(cls.folder.name) / "program"
        source = cls.program.with_suffix(".cpp")
        source.write_text(operators.write_mutants(text, "p.cpp", numbered))
        subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror",
                        "-o", cls.program, source], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def output(self, number, **environment):
        done = subprocess.run([self.program], stdout=subprocess.PIPE, check=True, text=True,
                              timeout=20, env=dict(environment, STILLMAP_MUTANT=str(number)))
        return [line.strip() for line in done.stdout.split("\n")[:-1]]

    def test_with_no_mutant_on_nothing_changes(self):
        self.assertEqual(self.output(-1), [wanted for *_, wanted, _ in STATEMENTS])

    def test_a_mutant_changes_its_statement_alone(self):
        for number, (statement, operator, _, _, changed) in enumerate(STATEMENTS):
            if operator:
                wanted = [normal for *_, normal, _ in STATEMENTS]
                wanted[number] = changed
                self.assertEqual(self.output(number), wanted, statement)

    def test_a_constexpr_function_is_another_at_run_time_only(self):
        self.assertEqual(self.output(self.constexpr)[-2:], ["4", "2"])

    def test_mutants_that_are_reached_are_told(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(65536))
            file.flush()
            self.output(-1, STILLMAP_MUTANTS_REACHED=file.name)
            marks = pathlib.Path(file.name).read_bytes()
        reached = {n for n, mark in enumerate(marks) if mark}
        self.assertEqual(reached, {n for n, s in enumerate(STATEMENTS) if s[1]} | {self.constexpr})


class Drawing(unittest.TestCase):
    def draw(self, dropped=()):
        drawn = tree.Tree.__new__(tree.Tree)
        drawn.texts = {"f.cpp": body("a = b + 1;\n  c = d;\n  e(f == g);\n  return;")}
        drawn.candidates = [("f.cpp", c) for c in operators.find_candidates(drawn.texts["f.cpp"])]
        return [str(m.number) + m.source for m in drawn.choose(10, set(dropped))]

    def test_one_mutant_a_statement(self):
        self.assertEqual(self.draw(), ["1a = b + 1;", "4c = d;", "5e(f == g);"])

    def test_another_takes_the_place_of_one_that_is_dropped(self):
        self.assertEqual(self.draw({1}), ["2a = b + 1;", "4c = d;", "5e(f == g);"])

    def test_whom_the_compiler_blames(self):
        candidates = operators.find_candidates("void f() {\n  a(b);\n  c(d);\n}\n")
        mutants = [tree.Mutant(n, "m/f.h", c, "") for n, c in enumerate(candidates, 1)]
        for output, wanted in (
                ("ERROR: x:1\nbin/m/f.h:3:5: error: no\n", [2]),
                ("ERROR: x:1\nm/f.h:2:5: error: no\nm/f.h:3:5: note: so\n", [1]),
                ("ERROR: x:1\ng.cpp:2:5: error: no\nm/f.h:3:5:   required from here\n", [2]),
                ("ERROR: x:1\ng.cpp:2:5: error: no\nERROR: y:1\nm/f.h:3:5: error: no\n", [2]),
                ("ERROR: x:1\nm/f.h:3:5: warning: no\n", [])):
            self.assertEqual([m.number for m in tree.to_blame(output, mutants)], wanted, output)


class Planning(unittest.TestCase):
    def suite(self, budget):
        def program(profile, **cases):
            return types.SimpleNamespace(profile=profile, cases=cases, startup=0.5)
        planned = suite.Suite([program("h200", z=1, a=2, b=10), program("h200", c=1),
                               program("mig", d=0.1)], types.SimpleNamespace(budget=budget))
        planned.reach = {3: [(0, "z"), (0, "a"), (0, "b"), (1, "c"), (2, "d")]}
        return planned

    def test_quick_programs_first_and_other_profiles_last(self):
        self.assertEqual(self.suite(60).plan(3),
                         ([(1, ["c"]), (0, ["z", "a", "b"]), (2, ["d"])], 0))

    def test_the_longest_cases_are_over_the_budget(self):
        self.assertEqual(self.suite(10).plan(3), ([(1, ["c"]), (0, ["z", "a"]), (2, ["d"])], 1))

    def test_what_nothing_reaches(self):
        self.assertEqual(self.suite(10).plan(4), ([], 0))


# In place of a GoogleTest program. Mutant 5 is caught by its first run alone.
FAKE = """#!/bin/sh
echo '[ RUN      ] a.b'
case $STILLMAP_MUTANT in
  1) echo '[  FAILED  ] a.b, where GetParam() = 1 (2 ms)'; exit 1 ;;
  2) kill -SEGV $$ ;;
  3) sleep 60 ;;
  4) exit 0 ;;
  5) if mkdir MARK 2>/dev/null; then echo '[  FAILED  ] a.b (2 ms)'; exit 1; fi ;;
  6) setsid sleep 60 & echo $! >PID ;;
esac
echo '[       OK ] a.b (5 ms)'
"""


class Watching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = suite.Program.__new__(suite.Program)
        self.program.executable = self.folder / "program"
        self.program.folder = self.folder
        self.program.environment = {"PATH": os.environ["PATH"]}
        self.program.cases, self.program.startup = {"a.b": 0}, 0
        self.program.executable.write_text(FAKE)
        self.program.executable.chmod(0o755)

    def how(self, number):
        outcome = self.program.run(["a.b"], lambda _: 1, number)
        return outcome.how, outcome.case

    def test_how_runs_end(self):
        self.assertEqual(self.how(0), ("passed", ""))
        self.assertEqual(self.how(1), ("failed", "a.b"))
        self.assertEqual(self.how(2), ("crashed (-11)", "a.b"))
        self.assertEqual(self.how(3), ("hung", "a.b"))
        self.assertEqual(self.how(4), ("ended early", "a.b"))

    def test_times(self):
        self.assertEqual(self.program.run(["a.b"], lambda _: 1).times, {"a.b": 0.005})

    def test_what_fails_once_is_not_caught(self):
        run_twice = suite.Suite([self.program], None).run_twice
        self.assertEqual(run_twice(self.program, ["a.b"], 1).how, "failed")
        self.assertEqual(run_twice(self.program, ["a.b"], 5).how, "unsteady: failed")

    def test_what_is_left_over_ends(self):
        self.assertEqual(self.how(6)[0], "passed")
        process = pathlib.Path("/proc", (self.folder / "PID").read_text().strip(), "cmdline")

        def runs():
            try:
                return b"sleep" in process.read_bytes()
            except OSError:
                return False

        until = time.monotonic() + 10  # a killed process ends a moment later
        while runs() and time.monotonic() < until:
            time.sleep(0.05)
        self.assertFalse(runs())


if __name__ == "__main__":
    unittest.main()
