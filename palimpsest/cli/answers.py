"""What is printed for programs."""

import json
import math
from pathlib import Path
from typing import Any


def print_json(value: Any) -> None:
    """As every reader of JSON knows it: a number that is none is null."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
