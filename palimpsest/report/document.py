"""A page in one file: nothing is fetched, and no script runs but our own, whatever a sample may contain."""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from .markup import Markup, element, join

HERE = Path(__file__).parent
HEAD = """<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="palimpsest {kind}">
<link rel="icon" href="data:,">
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(kind: str, title: str, *content: str, script: str = "") -> str:
    """The sections of a page as a whole one; `kind` says what of ours it is."""
    policy = f"{POLICY}; script-src 'sha256-{fingerprint(script)}'" if script else POLICY
    head = element(
        "head",
        Markup(HEAD.format(policy=policy, kind=kind)),
        element("title", f"{title} · palimpsest"),
        element("style", Markup((HERE / "style.css").read_text("utf-8"))),
    )
    main = element("main", *(join(part, "\n") for part in content if part))
    body = element("body", main, element("script", Markup(script)) if script else "")
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def pointer_script() -> str:
    """Shows the values under the pointer in every chart."""
    return (HERE / "page.js").read_text("utf-8")


def fingerprint(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


def is_ours(path: Path, kind: str) -> bool:
    """Whether a file is a page of this kind."""
    opening = HEAD.format(policy="", kind=kind).splitlines()[-2].encode()
    with path.open("rb") as file:
        return opening in file.read(4096)
