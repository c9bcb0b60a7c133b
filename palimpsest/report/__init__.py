"""What a run looks like, and several side by side: figures and pages of one file, made from run folders alone."""

from .comparison import Comparison, compare_runs
from .comparison_page import write_comparison
from .figures import draw_curves
from .page import write_report
from .run_folder import Measurement, Reading, RunRecord, read_run

__all__ = [
    "write_report",
    "draw_curves",
    "compare_runs",
    "write_comparison",
    "Comparison",
    "read_run",
    "RunRecord",
    "Measurement",
    "Reading",
]
