"""A compiled kernel, read from its PTX: what Triton hands to NVIDIA's assembler, one instruction after the other."""

import re
from dataclasses import dataclass

LEFT_OUT = re.compile(r"//.*|^\s*\.loc\b.*$", re.MULTILINE)
LABEL = re.compile(r"(\$\S+):\s*")


@dataclass
class Instruction:
    text: str
    name: str
    words: list[str]  # what follows it after dots; the last is mostly the kind of number
    operands: list  # names and numbers, or lists of them
    guard: str | None  # only threads where this is true
    unless: bool  # … or where it is false
    target: int | None = None  # of a branch


class Program:
    def __init__(self, ptx: str):
        head, body = ptx[ptx.index(".entry") :].split("{", 1)
        self.name = re.match(r"\.entry (\w+)", head)[1]
        self.parameters = re.findall(r"\w+_param_\d+", head)
        self.threads = int(re.search(r"\.reqntid (\d+)", head)[1])
        labels, lines = {}, []
        for line in LEFT_OUT.sub("", body.split(".section")[0]).split(";"):
            line = " ".join(line.split()).lstrip("{} ")  # assembly written by hand is in braces
            while found := LABEL.match(line):
                labels[found[1]] = len(lines)
                line = line[found.end() :].lstrip("{} ")
            if line and not line.startswith("."):  # which declares something
                lines.append(line)
        self.instructions = [instruction(line, labels) for line in lines]
        self.has_groups = any(each.name == "wgmma" for each in self.instructions)


def instruction(line: str, labels: dict[str, int]) -> Instruction:
    guard, unless, text = None, False, line
    if line.startswith("@"):
        guard, line = line[1:].split(maxsplit=1)
        unless, guard = guard.startswith("!"), guard.lstrip("!")
    code, _, rest = line.partition(" ")
    name, *words = code.split(".")
    operands = operands_of(rest)
    target = labels[operands[0]] if name == "bra" else None
    return Instruction(text, name, words, operands, guard, unless, target)


def operands_of(rest: str) -> list:
    """Those in braces as lists."""
    found = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
    return [[each.strip() for each in x[1:-1].split(",")] if x.startswith("{") else x for x in found]
