"""How this process was started: by itself, or by torchrun as one of several. Imported before torch is."""

import os


def started_with() -> int:
    """How many processes torchrun has started, this one among them."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def place_on_machine() -> int:
    """Which of those on this machine it is."""
    return int(os.environ.get("LOCAL_RANK", 0)) if started_with() > 1 else 0


def speaks() -> bool:
    """Whether it may print: of several the first one does, for all."""
    return started_with() == 1 or os.environ["RANK"] == "0"
