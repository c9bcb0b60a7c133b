"""What the memories of a run do with a text, as readings and as a part of the run's report."""

import json
from pathlib import Path

from ..evaluation.instruments import Inspection
from ..files import write_atomically
from ..report.page import write_report
from .trained import load


def inspect(
    run: str | Path, text: str | None = None, length: int = 128, checkpoint: str = "best", device: str = "auto"
) -> Inspection:
    """The readings of every memory over the first tokens of a text, by default of the run's validation split."""
    return load(run, checkpoint, device).inspect(text, length)


def report_instruments(folder: Path, inspection: Inspection) -> Path:
    """Leave the readings in the run's folder and write its report again, now with them."""
    write_atomically(folder / "instruments.json", json.dumps(inspection.to_json(), ensure_ascii=False) + "\n")
    return write_report(folder)
