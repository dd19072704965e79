"""Where real dumps lie, for the tests that want them."""

import os
from pathlib import Path

SEEDS = {
    "000_c00fd3afea504246.txt": (569, 9917),
    "001_83a80cec1e7cc5e6.txt": (512, 8217),
    "002_2b3b731b0feb0bfe.txt": (15, 250),
    "004_915eaf8d7a870eb5.txt": (14, 185),
}
"""File name → number of computations and instructions."""
LARGE_SEEDS = ("000_c00fd3afea504246.txt", "001_83a80cec1e7cc5e6.txt")
"""Steps of training, which are alike."""


def seed_path(name: str) -> Path | None:
    """The file in the folder that HLOEXEC_SEEDS names, or in `shared/seeds` beside the repository; None where absent."""
    folders = [Path(os.environ["HLOEXEC_SEEDS"])] if "HLOEXEC_SEEDS" in os.environ else []
    folders.append(Path(__file__).resolve().parents[3] / "shared" / "seeds")
    return next((folder / name for folder in folders if (folder / name).is_file()), None)
