"""Where the project keeps its files."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
# In a checkout `data/` lies beside the package; a wheel carries it inside.
DATA = PACKAGE / "data" if (PACKAGE / "data").is_dir() else ROOT / "data"
CHECKPOINTS = DATA / "checkpoints"
RESULTS = ROOT / "results"
