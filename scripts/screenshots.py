"""The pictures of the pages in the docs: the default recipe, the same with the Sum rule, and softmax attention.

    python scripts/screenshots.py                            trains the three runs first, a few minutes each
    python scripts/screenshots.py --runs DELTA SUM SOFTMAX   three runs that are there already
    python scripts/screenshots.py --steps 40                 any other flag is one of `palimpsest train`

A run that is finished is not trained again. Needs playwright, and a Chromium, Chrome or Edge on this machine.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from palimpsest.report import compare_runs, write_comparison, write_report

RUNS = {
    "delta": ["tiny-shakespeare"],
    "sum": ["tiny-shakespeare", "--update-rule", "Sum"],
    "softmax": ["tiny-shakespeare-softmax"],
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
# a page that is looked at needs nothing of what a browser does for itself
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
DESK, TELEPHONE = {"width": 960, "height": 1180}, {"width": 390, "height": 844}


def main() -> None:
    options, flags = parse(sys.argv[1:])
    runs = options.runs or [train(name, options.folder, flags) for name in RUNS]
    page = write_comparison(compare_runs(runs), options.folder / "compare.html")
    photograph(write_report(runs[0]), page, options.output)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="Pictures of the pages, for the docs.", allow_abbrev=False)
    parser.add_argument("--runs", type=Path, nargs="+", help="runs that are there; the report is of the first")
    parser.add_argument("--folder", type=Path, default=Path("runs/pictures"), help="where runs and pages are written")
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"))
    return parser.parse_known_args(arguments)


def train(name: str, folder: Path, flags: list[str]) -> Path:
    run = folder / name
    if not (run / "evaluation.json").exists():
        command = [sys.executable, "-m", "palimpsest", "train", *RUNS[name], *flags, "--folder", str(run)]
        subprocess.run(command, check=True)
    return run


def photograph(report: Path, comparison: Path, output: Path) -> None:
    from playwright.sync_api import sync_playwright

    output.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        take(browser, report, output / "report.png", viewport=DESK)
        take(browser, report, output / "report-dark.png", viewport=DESK, color_scheme="dark")
        take(browser, report, output / "report-phone.png", viewport=TELEPHONE, device_scale_factor=2)
        take(browser, comparison, output / "compare.png", viewport=DESK)
        browser.close()


def find_browser() -> str | None:
    """PALIMPSEST_BROWSER, or the first that is installed; None where there is none."""
    return os.environ.get("PALIMPSEST_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


def take(browser: Any, page: Path, picture: Path, **how: Any) -> None:
    """The top of the page, with the pointer on its first chart."""
    with browser.new_context(**how) as context:
        tab = context.new_page()
        tab.goto(page.resolve().as_uri())
        box = tab.locator("svg.chart:visible").first.bounding_box()
        tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + box["height"] / 2)
        tab.screenshot(path=picture)
    print(picture)


if __name__ == "__main__":
    main()
