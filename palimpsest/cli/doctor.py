"""palimpsest doctor [--json] [--compile]"""

import sys
from argparse import ArgumentParser  # and not tyro: whether that is there is one of the questions
from typing import Any

from .answers import print_json
from .examination import Finding, Verdict, examine

TITLES = {"self_test": "self-test: every form against the definition in float64, there and back"}
MARKS = {Verdict.FINE: "✓", Verdict.ABSENT: "·", Verdict.WARNING: "!", Verdict.FAILURE: "✗"}
WORDS = {Verdict.FINE: "ok", Verdict.ABSENT: "-", Verdict.WARNING: "WARN", Verdict.FAILURE: "FAIL"}


def main(arguments: list[str]) -> None:
    parser = ArgumentParser(
        "palimpsest doctor",
        description="Whether training will work on this machine, and what to do if it will not.",
        epilog="Exit code 0: training will work; 1: it will not. What is optional is only spoken of.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--compile", action="store_true", help="try torch.compile too, which may take a minute")
    options = parser.parse_args(arguments)
    found = examine(options.compile)
    if options.json:
        print_json(as_json(found))
    else:
        print(as_text(found))
    if failures(found):
        sys.exit(1)


def failures(found: dict[str, list[Finding]]) -> list[Finding]:
    return [finding for findings in found.values() for finding in findings if finding.verdict is Verdict.FAILURE]


def as_json(found: dict[str, list[Finding]]) -> dict[str, Any]:
    problems = [
        {"about": finding.name, "verdict": finding.verdict, "said": finding.said, "remedy": finding.remedy}
        for findings in found.values()
        for finding in findings
        if finding.verdict is not Verdict.FINE
    ]
    facts = {topic: {finding.name: finding.value for finding in findings} for topic, findings in found.items()}
    return {"works": not failures(found), "problems": problems, **facts}


def as_text(found: dict[str, list[Finding]]) -> str:
    marks, arrow = (MARKS, "→") if can_print("✓✗·→") else (WORDS, "->")
    sections = [
        section(TITLES.get(topic, topic), findings, marks, arrow) for topic, findings in found.items() if findings
    ]
    return "\n\n".join([*sections, conclusion(failures(found))])


def section(title: str, findings: list[Finding], marks: dict[Verdict, str], arrow: str) -> str:
    mark, name = (max(map(len, column)) for column in (marks.values(), [finding.name for finding in findings]))
    lines = [title]
    for finding in findings:
        lines.append(f"  {marks[finding.verdict]:<{mark}} {finding.name:<{name}}  {finding.said}")
        if finding.remedy:
            lines.append(f"  {'':<{mark}} {'':<{name}}  {arrow} {finding.remedy}")
    return "\n".join(lines)


def conclusion(failed: list[Finding]) -> str:
    if failed:
        return f"training will not work here: {', '.join(finding.name for finding in failed)}"
    return "training will work here"


def can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
