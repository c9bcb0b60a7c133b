"""What a run looks like: figures and a page in one file, made from the files in its folder alone."""

from .figures import draw_curves
from .page import write_report
from .run_folder import Measurement, Reading, RunRecord, read_run

__all__ = ["write_report", "draw_curves", "read_run", "RunRecord", "Measurement", "Reading"]
