"""The image processor of a model's folder: how large pictures are, and how their pixels are normalised."""

from pathlib import Path

from transformers import AutoImageProcessor
from transformers.image_processing_utils import BaseImageProcessor

from coupling_lib.errors import ModelUnavailableError, shown
from coupling_lib.models.hub import PROCESSOR


def read(folder: Path) -> BaseImageProcessor | None:
    """Read a folder's image processor; None where it has none."""
    if not (folder / PROCESSOR).is_file():
        return None
    try:
        # The other backend needs torchvision.
        return AutoImageProcessor.from_pretrained(folder, trust_remote_code=False, local_files_only=True, backend="pil")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        raise ModelUnavailableError(
            f"{PROCESSOR} in {str(folder)!r} cannot be read ({shown(str(error), 200)}); fetch it again, or take it "
            "out of the folder and normalise the pictures yourself"
        ) from error
