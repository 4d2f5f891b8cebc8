"""Finds what can be mutated in a C++ source and writes the mutants into it.

Function bodies are walked statement by statement. Each place where an operator applies is a
Candidate: edits of the text in which the mutant has a number and is switched on at run time (mutant
schemata), so that one build holds all mutants. schemata.h is what the edits use.

No edit evaluates an operand twice or copies a lambda. With is(17) for "mutant 17 is on":
    a < b          a < operation<17, std::less_equal<>>() < b
    n += b         n += operation<17, minus_assign>() += b
    a && b         (is(17) != ((is(17) != bool(a)) && (is(17) != bool(b))))       that is: a || b
    if (c)         if (is(17) != bool(c))
    f(x);          if (is(17)) {} else f(x);
    0              (is(17) ? 1 : 0)

Left alone: preprocessor lines and what is between #if and #endif, template arguments, attributes,
constexpr variables, static_assert, case labels, sizes of arrays, enumerators, values of members and
of globals. A constexpr function does hold mutants, which are off while the compiler evaluates it.
"""

import dataclasses
import pathlib
import re

from .source import KEYWORDS, CannotParse, Source  # noqa: F401

SCHEMATA = pathlib.Path(__file__).parent / "schemata.h"
IS = "stillmap_mutants::is(@)"  # @ becomes the mutant's number
BOOL = "static_cast<bool>("

# What an operator becomes, and the function object that does it.
RELATIONAL = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
              "==": ("!=",), "!=": ("==",)}
ARITHMETIC = {"+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "+=": ("-=",), "-=": ("+=",)}
FUNCTION = {"<": "std::less<>", "<=": "std::less_equal<>", ">": "std::greater<>",
            ">=": "std::greater_equal<>", "==": "std::equal_to<>", "!=": "std::not_equal_to<>",
            "+": "std::plus<>", "-": "std::minus<>", "*": "std::multiplies<>",
            "/": "std::divides<>", "+=": "stillmap_mutants::plus_assign",
            "-=": "stillmap_mutants::minus_assign"}

ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
TYPE_QUESTIONS = {"sizeof", "decltype", "alignof", "alignas", "noexcept", "typeid"}
NOT_EXPRESSIONS = {"using", "typedef", "static_assert", "goto", "break", "continue", "asm",
                   "friend", "template", "namespace"}
ZERO_OR_ONE = re.compile(r"([01])([uU]?(?:[lL]{0,2}|z)|[lL]{1,2}[uU])$")


@dataclasses.dataclass
class Candidate:
    """One way to change one place. `edits`: (start, end, text), of which no two overlap."""
    line: int
    operator: str
    before: str
    after: str
    edits: list
    position: int
    statement: int  # where its statement starts; at most one mutant is chosen in a statement
    lines: tuple  # the first and the last that it edits
    statement_lines: tuple


def shorten(text, most=70):
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most - 3] + "..."


class Mutator(Source):
    """A source and all that can be mutated in it: `candidates`."""

    def __init__(self, text):
        super().__init__(text)
        self.candidates = []
        self.declarations(0, len(self.tokens))

    # ---- outside of functions ----

    def declarations(self, i, end):
        """A namespace or a class: looks for the bodies of functions."""
        head = []
        while i < end:
            text = self.at(i)
            if text == "{":
                if self.braces(head, i):
                    head = []
                i = self.match[i] + 1
                continue
            head = [] if text == ";" or self.at(i - 1) + text in (
                "public:", "private:", "protected:") else head + [i]
            i = self.match[i] + 1 if self.opens(i) else i + 1

    def braces(self, head, i):
        """What `{` at i begins after `head`. True: the declaration ends with it."""
        words = [self.at(h) for h in head]
        inside = (i + 1, self.match[i])
        if "namespace" in words or (words[:1] == ["extern"] and self.kind(i - 1) == "string"):
            self.declarations(*inside)
            return True
        if "enum" in words:
            return True
        for keyword in ("class", "struct", "union"):
            if keyword in words and "(" not in words[words.index(keyword):]:
                self.declarations(*inside)
                return True
        if "(" not in words or any(
                word == "=" and words[n - 1] != "operator" for n, word in enumerate(words) if n):
            return False  # a variable and its value
        if self.initialises_member(words, i):
            return False
        if "consteval" not in words:
            self.block(i)
        return True

    def initialises_member(self, words, i):
        if ":" not in words[words.index("("):]:
            return False
        return (self.kind(i - 1) == "word" or self.at(i - 1) == ">") and self.at(i - 1) not in (
            "const", "noexcept", "override", "final", "try")

    # ---- statements ----

    def block(self, opening):
        i, end = opening + 1, self.match[opening]
        while i < end:
            i = self.statement(i, end)

    def statement(self, i, end):
        """Walks one statement; the index of the next."""
        text = self.at(i)
        if i >= end or text == ";":
            return i + 1
        if text == "{":
            self.block(i)
            return self.match[i] + 1
        if text == "[" and self.at(i + 1) == "[":
            return self.statement(self.match[i] + 1, end)
        if text in ("else", "do", "try"):
            return self.statement(i + 1, end)
        if text in ("if", "while", "for", "switch", "catch"):
            return self.compound(i, end)
        if text == "case":
            return self.skip_to({":"}, i, end) + 1
        if self.kind(i) == "word" and self.at(i + 1) == ":":
            return i + 2  # a label
        return self.simple(i, end)

    def compound(self, i, end):
        """`if (...)`, and what follows it; the `else` is a statement of its own here."""
        opening = self.skip_to({"("}, i, end)
        closing = self.match[opening]
        if self.at(i) == "for":
            self.for_head(i, opening + 1, closing)
        elif self.at(i) == "switch":
            self.expressions(opening + 1, closing, i)
        elif self.at(i) != "catch" and opening == i + 1:  # not `if constexpr`
            self.condition(opening + 1, closing, i)
        return self.statement(closing + 1, end)

    def for_head(self, statement, i, end):
        first = self.skip_to({";"}, i, end)
        if first == end:
            first = self.skip_to({":"}, i, end)
        else:
            self.expressions(i, first, statement, declares=True)
        self.expressions(first + 1, end, statement)

    def condition(self, i, end, statement):
        first = self.skip_to({";"}, i, end)
        if first != end:
            self.expressions(i, first, statement, declares=True)
            i = first + 1
        self.expressions(i, end, statement)
        constant = end - i == 1 and (self.at(i) in ("true", "false") or self.kind(i) == "number")
        if i < end and not constant and self.skip_to(ASSIGNMENTS, i, end) == end:
            before = self.between(i, end)
            self.add("condition", i, before, "!(%s)" % before, statement,
                     [self.insert(i, IS + " != " + BOOL), self.insert_after(end - 1, ")")])

    def simple(self, i, end):
        """A statement up to its semicolon: an expression, a declaration, a return."""
        semicolon = self.skip_to({";"}, i, end)
        text = self.at(i)
        if text in NOT_EXPRESSIONS or self.is_constant(i, semicolon):
            return semicolon + 1
        if text in ("struct", "class", "union", "enum"):
            brace = self.skip_to({"{", "(", "="}, i, semicolon)
            if self.at(brace) == "{" and brace < semicolon:
                if text != "enum":
                    self.declarations(brace + 1, self.match[brace])
                return semicolon + 1
        if text.isupper() and self.at(i + 1) == "(" and self.kind(self.match[i + 1] + 1) == "word":
            return self.match[i + 1] + 1  # a macro that brings its own semicolon
        if text == "return":
            self.flip_return(i, semicolon)
        declares = not self.skip_statement(i, semicolon)
        self.expressions(i, semicolon, i, declares)
        return semicolon + 1

    def is_constant(self, i, end):
        while i < end and self.at(i) in ("static", "inline", "const", "thread_local"):
            i += 1
        return self.at(i) == "constexpr"

    def flip_return(self, i, semicolon):
        if semicolon - i == 2 and self.at(i + 1) in ("true", "false"):
            other = "false" if self.at(i + 1) == "true" else "true"
            self.add("return", i + 1, self.at(i + 1), other, i,
                     [self.replace(i + 1, "(%s ? %s : %s)" % (IS, other, self.at(i + 1)))])

    def skip_statement(self, i, semicolon):
        """`f(x);` and `a = b;`: for expressions only, which no declaration looks like."""
        stop = self.end_of_operand(i)
        if stop is None:
            return False
        call = stop == semicolon and self.at(stop - 1) == ")"
        if not call and self.at(stop) not in ASSIGNMENTS:
            return False
        self.add("call" if call else "assignment", i, self.between(i, semicolon), "nothing", i,
                 [self.insert(i, "if (" + IS + ") {} else ")], semicolon)
        return True

    # ---- expressions ----

    def expressions(self, i, end, statement, declares=False):
        """The operators and literals of tokens i to end. In lambdas: statements."""
        bounds = declares  # `[` may still be an array's size
        while i < end:
            text = self.at(i)
            if text in ("=", "{", "return"):
                bounds = False
            if self.opens(i) and (text == "<" or self.is_other_bracket(i, bounds)):
                i = self.match[i]
            elif text == "{" and self.is_lambda(i):
                self.block(i)
                i = self.match[i]
            elif text == "{" and self.skip_to({";"}, i + 1, self.match[i]) != self.match[i]:
                i = self.match[i]  # statements where a value should be: a macro's
            else:
                self.operators(i, statement)
            i += 1

    def is_other_bracket(self, i, bounds):
        """Captures, attributes, sizes of arrays, and what only asks for a type."""
        if self.at(i) == "(":
            return self.at(i - 1) in TYPE_QUESTIONS
        return self.at(i) == "[" and (bounds or self.at(i + 1) == "[" or self.is_capture(i))

    def operators(self, i, statement):
        text = self.at(i)
        if self.kind(i) == "number":
            self.literal(i, statement)
        elif text in ("++", "--"):
            self.step(i, statement)
        elif not self.is_binary(i):
            return
        elif text in ("&&", "||"):
            self.logical(i, statement)
        else:
            for other in RELATIONAL.get(text, ()) + ARITHMETIC.get(text, ()):
                name = "relational" if text in RELATIONAL else "arithmetic"
                operation = "stillmap_mutants::operation<@, %s>()" % FUNCTION[other]
                self.add(name, i, text, other, statement,
                         [self.replace(i, "%s %s %s" % (text, operation, text))])

    def is_binary(self, i):
        """A binary operator has spaces around it, and no string beside it."""
        if self.touches(i) or self.touches(i + 1):
            return False
        if "string" in (self.kind(i - 1), self.kind(i + 1)) or self.at(i - 1) in KEYWORDS:
            return False
        return (self.kind(i - 1) in ("word", "number") or
                self.at(i - 1) in (")", "]", "}", ">", "++", "--"))

    def literal(self, i, statement):
        match = ZERO_OR_ONE.match(self.at(i))
        if match:
            other = "10"[int(match.group(1))] + match.group(2)
            self.add("literal", i, self.at(i), other, statement,
                     [self.replace(i, "(%s ? %s : %s)" % (IS, other, self.at(i)))])

    def step(self, i, statement):
        """`++a.b` and `a.b++`, where the operand is a name or a member."""
        if self.touches(i) and (self.kind(i - 1) == "word" or self.at(i - 1) == "]"):
            first, end = self.start_of_names(i - 1), i + 1
        else:
            first, end = i, self.end_of_operand(i + 1)
        if first is None or end is None or self.at(end - 1) == ")":
            return
        before = self.between(first, end)
        at = self.tokens[i].start - self.tokens[first].start
        after = before[:at] + {"++": "--", "--": "++"}[self.at(i)] + before[at + 2:]
        self.add("step", i, before, after, statement,
                 [(self.tokens[first].start, self.tokens[end - 1].end,
                   "(%s ? %s : %s)" % (IS, after, before))])

    def logical(self, i, statement):
        text = self.at(i)
        other = "||" if text == "&&" else "&&"
        ends = ASSIGNMENTS | KEYWORDS | {"?", ":", ",", ";"}
        first = last = i
        while self.in_operand(first - 1, ends | ({"||"} if text == "&&" else set()), -1):
            first = self.match[first - 1] if first - 1 in self.match else first - 1
        while self.in_operand(last + 1, ends | {"||"} | ({"&&"} if text == "&&" else set()), 1):
            last = self.match[last + 1] if last + 1 in self.match else last + 1
        if first == i or last == i:
            return
        inner = "(" + IS + " != " + BOOL
        self.add("logical", i, text, other, statement, [
            self.insert(first, "(" + IS + " != (" + inner), self.insert_after(i - 1, "))"),
            self.insert(i + 1, inner), self.insert_after(last, "))))")])

    def in_operand(self, i, ends, direction):
        """Whether an operand that grows in a direction still holds token i."""
        if not 0 <= i < len(self.tokens) or (self.at(i) in ends and self.kind(i) != "string"):
            return False
        if i in self.match:
            return (self.match[i] - i) * direction > 0
        return self.at(i) not in ("(", ")", "[", "]", "{", "}")

    # ---- edits ----

    def insert(self, i, text):
        return (self.tokens[i].start, self.tokens[i].start, text)

    def insert_after(self, i, text):
        return (self.tokens[i].end, self.tokens[i].end, text)

    def replace(self, i, text):
        return (self.tokens[i].start, self.tokens[i].end, text)

    def add(self, operator, i, before, after, statement, edits, end=None):
        if self.tokens[i].conditional:
            return
        line = lambda at: self.text.count("\n", 0, at) + 1
        semicolon = self.skip_to({";", "{"}, end or i, len(self.tokens) - 1)
        self.candidates.append(Candidate(
            self.tokens[i].line, operator, shorten(before), shorten(after), edits,
            self.tokens[i].start, self.tokens[statement].start,
            (line(edits[0][0]), line(edits[-1][1])),
            (self.tokens[statement].line, self.tokens[semicolon].line)))


def find_candidates(text):
    """All candidates of a source, in the order of the text."""
    return sorted(Mutator(text).candidates, key=lambda c: (c.position, c.operator, c.after))


def write_mutants(text, path, chosen):
    """The source with mutants in it, `chosen`: (number, candidate). Lines keep their numbers."""
    edits = [(start, end, new.replace("@", str(number)))
             for number, candidate in chosen for start, end, new in candidate.edits]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return '#line 1 "schemata.h"\n%s#line 1 "%s"\n%s' % (SCHEMATA.read_text(), path, text)
