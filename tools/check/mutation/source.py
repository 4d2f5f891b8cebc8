"""A C++ source as tokens with matched brackets.

What tells `a < b` from `f<b>` and `a * b` from `T *b` are the spaces that clang-format puts.
"""

import dataclasses
import re

KEYWORDS = {"return", "co_return", "co_yield", "throw", "case", "else", "do", "delete", "new", "if",
            "while", "for", "switch", "const", "constexpr", "static", "auto", "using", "typename",
            "struct", "class", "enum", "union", "goto", "operator", "template", "thread_local"}

TOKEN = re.compile(r'''
    (?P<directive> ^[ \t]*\#(?:[^\n\\]|\\\n|\\.)* )
  | (?P<space> \s+ | //[^\n]* | /\*.*?\*/ )
  | (?P<raw> (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" )
  | (?P<string> (?:u8|[uUL])?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\w* )
  | (?P<number> \.?\d(?:[eEpP][+-]|'?[\w.])* )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<punct> <=>|<<=|>>=|\.\.\.|->\*|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|. )
''', re.VERBOSE | re.DOTALL | re.MULTILINE)


class CannotParse(Exception):
    """The brackets of a file do not match; it is left as it is."""


@dataclasses.dataclass
class Token:
    kind: str
    text: str
    start: int
    end: int
    line: int
    conditional: bool  # between #if and #endif: perhaps not compiled


def tokenize(text):
    """The tokens of a source, without comments and preprocessor lines."""
    tokens, line, depth, at = [], 1, 0, 0
    while at < len(text):
        match = TOKEN.match(text, at)
        kind, found = match.lastgroup, match.group()
        if match.group("raw") is not None:
            kind = "string"
        if kind == "directive":
            word = found.strip().lstrip("#").strip()
            depth += word.startswith("if") - word.startswith("endif")
        elif kind != "space":
            tokens.append(Token(kind, found, at, match.end(), line, depth > 0))
        line += found.count("\n")
        at = match.end()
    return tokens


class Source:
    """The tokens of a source, and what can be said of them without knowing types."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokenize(text)
        self.match = {}  # brackets: the index of the other one
        self.match_brackets()

    def at(self, i):
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def kind(self, i):
        return self.tokens[i].kind if 0 <= i < len(self.tokens) else ""

    def touches(self, i):
        """No space between token i and the one before it."""
        return i > 0 and self.tokens[i - 1].end == self.tokens[i].start

    def between(self, first, end):
        return self.text[self.tokens[first].start:self.tokens[end - 1].end]

    def opens(self, i):
        return self.match.get(i, -1) > i

    def match_brackets(self):
        stack, pair = [], {")": "(", "]": "[", "}": "{"}
        for i, token in enumerate(self.tokens):
            if token.kind != "punct":
                continue
            if token.text in "([{" or (token.text == "<" and self.opens_template(i)):
                stack.append(i)
            elif token.text == ">" and stack and self.at(stack[-1]) == "<":
                self.join(stack.pop(), i)
            elif token.text in pair:
                while stack and self.at(stack[-1]) == "<":
                    stack.pop()
                if not stack or self.at(stack[-1]) != pair[token.text]:
                    raise CannotParse("line %d" % token.line)
                self.join(stack.pop(), i)
        if any(self.at(i) != "<" for i in stack):
            raise CannotParse("the end")

    def opens_template(self, i):
        if self.at(i - 1) == "template":
            return True
        return self.touches(i) and (self.at(i - 1) == "]" or
                                    (self.kind(i - 1) == "word" and self.at(i - 1) != "operator"))

    def join(self, first, last):
        self.match[first], self.match[last] = last, first

    def skip_to(self, stops, i, end):
        """The next token of `stops` that lies in no bracket; `end` where there is none."""
        while i < end and self.at(i) not in stops:
            i = self.match[i] + 1 if self.opens(i) else i + 1
        return min(i, end)

    def is_capture(self, i):
        return self.at(i - 1) in KEYWORDS or not (
            self.kind(i - 1) in ("word", "string") or self.at(i - 1) in (")", "]", "}", ">"))

    def is_lambda(self, i):
        """`{` at i begins the body of a lambda."""
        i -= 1
        while self.kind(i) == "word" or self.at(i) in ("::", "->", "*", "&", ">"):
            i = self.match[i] - 1 if self.at(i) == ">" and i in self.match else i - 1
        if self.at(i) == ")":
            i = self.match[i] - 1
        if self.at(i) == ">" and i in self.match:
            i = self.match[i] - 1
        return self.at(i) == "]" and self.at(i - 1) != "]" and self.is_capture(self.match[i])

    def end_of_operand(self, i):
        """Past `(void)a.b->c[d]<e>(f)`; None where that is not what begins at i."""
        if self.at(i) == "(" and self.at(i + 1) == "void":
            i = self.match[i] + 1
        while self.at(i) in ("*", "::"):
            i += 1
        if self.at(i) == "(":
            i = self.match[i] + 1
        elif self.kind(i) == "word" and self.at(i) not in KEYWORDS:
            i += 1
        else:
            return None
        while True:
            if self.at(i) in (".", "->", "::") and self.kind(i + 1) == "word":
                i += 2
            elif self.at(i) in ("(", "[") or (self.at(i) == "<" and self.opens(i)):
                i = self.match[i] + 1
            else:
                return i

    def start_of_names(self, i):
        while True:
            if self.at(i) == "]":
                i = self.match[i] - 1
                continue
            if self.kind(i) != "word" or self.at(i) in KEYWORDS:
                return None
            if self.at(i - 1) not in (".", "->", "::"):
                return i
            i -= 2
