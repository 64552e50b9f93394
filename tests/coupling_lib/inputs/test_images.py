"""Images in a model's own format, as they are shown and as they are read."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.inputs import images
from coupling_lib.inputs.labelled_images import read_dataset

SMALL = SimpleNamespace(model_type="vit", image_size=8, patch_size=2, num_channels=1, image_mean=[0.3], image_std=[0.4])
LARGE = SimpleNamespace(model_type="deit", image_size=[32, 32], patch_size=16, num_channels=3)


def test_images_are_held_out_and_normalised():
    first, again, other = (images.load_images("digits", SMALL, 5, seed) for seed in (0, 0, 1))
    held_out = {bytes(image.flatten().tolist()) for image in read_dataset("digits").test}
    for picture in first:
        raw = ((picture.pixels * 0.4 + 0.3) * 255).round().to(torch.uint8)
        assert bytes(raw.flatten().tolist()) in held_out
        assert picture.pixels.shape == (1, 1, 8, 8) and picture.shown.shape == (8, 8)
        assert picture.name == f"digits {picture.label}"
    ours, same, others = (torch.cat([picture.pixels for picture in some]) for some in (first, again, other))
    assert torch.equal(ours, same) and not torch.equal(ours, others)
    (picture,) = images.load_images("digits", LARGE, 1)
    assert picture.pixels.shape == (1, 3, 32, 32)
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in images.normalisation(LARGE))
    raw = picture.pixels * std + mean
    assert torch.allclose(raw[:, 0], raw[:, 1], atol=1e-6) and raw.min() > -0.01 and raw.max() < 1.01
    assert images.load_images("noise", SMALL, 1)[0].name == "noise"


SMALL_STACK = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=2)
# By family: tokens before the patches.
BEFORE = {"ViT": 1, "DeiT": 2, "Dinov2": 1, "Dinov2WithRegisters": 5, "CLIPVision": 1, "SiglipVision": 0, "IJepa": 0}


def vision_model(family: str, **changes) -> cl.Model:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL_STACK | changes)
    hf = getattr(transformers, f"{family}Model")(config).eval()
    for weight in hf.parameters():  # registers and class tokens start at zero in some families
        torch.nn.init.normal_(weight, std=0.2)
    return cl.wrap_model(hf)


@pytest.mark.parametrize(("family", "before"), BEFORE.items())
def test_patch_box_holds_the_pixels_of_its_token(family, before):
    model = vision_model(family)
    (picture,) = images.load_images("noise", model.hf.config, 1)
    states = cl.trace(model, picture.pixels).hidden[0]
    for token, box in ((before, (0, 0, 2, 2)), (before + 5, (2, 2, 2, 2)), (-1, (6, 6, 2, 2))):
        assert images.patch_box(model, token, picture) == box
        x, y, wide, high = box
        changed = picture.pixels.clone()
        changed[..., y : y + high, x : x + wide] += 1
        moved = (cl.trace(model, changed).hidden[0] != states).any(-1).nonzero().flatten().tolist()
        assert moved == [token % len(states)]
    assert images.patch_box(model, before + 16, picture) is None
    assert before == 0 or images.patch_box(model, 0, picture) is None


PROCESSORS = {
    "DINOv2": {
        "image_processor_type": "BitImageProcessor", "crop_size": {"height": 8, "width": 8}, "resample": 3,
        "size": {"shortest_edge": 10}, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    },
    "ViT": {
        "feature_extractor_type": "ViTFeatureExtractor", "size": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    },
    "CLIP": {"image_processor_type": "CLIPImageProcessorFast", "crop_size": 8, "size": 8},
}  # fmt: skip


def loaded(folder, family: str, processor: dict, pixels: np.ndarray, **changes):
    """Load a model with a processor, and a picture for it."""
    vision_model(family, **changes).hf.save_pretrained(folder / "model")
    (folder / "model" / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "pictures").mkdir()
    Image.fromarray(pixels).save(folder / "pictures" / "a.png")
    model = cl.load_model(folder / "model")
    return model, *cl.load_images(folder / "pictures", model, 1)


def test_coloured_pictures_reach_one_channel_models(tmp_path):
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    processor |= {"image_mean": [0.5], "image_std": [0.5]}
    colour = np.full((8, 8, 3), (30, 60, 90), dtype=np.uint8)
    _, picture = loaded(tmp_path, "ViT", processor, colour, num_channels=1)
    torch.testing.assert_close(picture.pixels, torch.full((1, 1, 8, 8), 2 * 60 / 255 - 1))


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_folders_own_processor_makes_the_pixels(tmp_path, name):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    model, picture = loaded(tmp_path, "Dinov2", PROCESSORS[name], pixels, image_size=12)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "model", backend="pil")
    wanted = processor(images=[Image.fromarray(pixels)], return_tensors="pt")["pixel_values"]
    assert torch.equal(picture.pixels, wanted)
    # The model was made for 12 x 12 pixels, and stretches its positions to the 8 x 8 that its processor gives.
    assert cl.trace(model, picture.pixels).n_tokens == 17 and picture.shown.shape == (8, 8, 3)


def test_unreadable_image_processor_is_refused(tmp_path):
    vision_model("ViT").hf.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    refused(ModelUnavailableError, r"preprocessor_config.json in .* cannot be read", cl.load_model, tmp_path)
    with pytest.warns(UserWarning, match="pixels are normalised by one half"):
        images.load_images("noise", transformers.Dinov2Config(**SMALL_STACK), 1)


def test_pictures_of_a_folder_are_read_upright(tmp_path):
    def shown(image, **how):
        image.save(tmp_path / "a.png", **how)
        return (images.load_images(tmp_path, LARGE, 1)[0].shown * 255).round().astype(int)[..., 0].tolist()

    upright = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    undo = {1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: np.transpose}
    undo |= {6: lambda x: np.rot90(x, 1), 7: lambda x: np.rot90(x, 2).T, 8: lambda x: np.rot90(x, -1)}
    for orientation, turned in undo.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        assert shown(Image.fromarray(np.ascontiguousarray(turned(upright))), exif=exif) == upright.tolist()
    wide = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)
    assert shown(Image.fromarray(wide)) == [[0, 100], [200, 255]]
    for name, colour in {"b.png": (0, 0, 255), "a.png": (255, 0, 0)}.items():
        Image.new("RGB", (10, 6), colour).save(tmp_path / name)
    first, second = images.load_images(tmp_path, LARGE, 2)
    assert (first.name, second.name) == ("a.png", "b.png") and first.shown[0, 0].tolist() == [1, 0, 0]
    assert first.pixels.shape == (1, 3, 32, 32)


def test_patches_that_are_not_the_tokens_are_refused():
    model = cl.load_model("nano-vit")
    (picture,) = images.load_images("digits", model, 1)
    model.hf.config.patch_size = 4
    message = "16 of the 17 tokens of nano-vit answer to an image, which has 2 x 2"
    refused(ParameterError, message, images.patch_box, model, 1, picture)


NO_SCALE, DECODER = SimpleNamespace(**vars(SMALL) | {"image_std": None}), SimpleNamespace(model_type="llama")


@pytest.mark.parametrize(
    ("source", "config", "n", "message"),
    [
        ("letters", SMALL, 1, "data is 'letters'; it must be 'digits'"),
        ("digits", SMALL, 10_000, "images is 10000; digits holds 719 images out"),
        ("digits", SMALL, 0, "images is 0; it must be a whole number from 1"),
        ("digits", DECODER, 1, "model type 'llama' reads no images"),
        ("digits", NO_SCALE, 1, r"image_mean is \[0.3\] and image_std None"),
    ],
)
def test_unreadable_images_are_refused(source, config, n, message):
    refused(ParameterError, message, images.load_images, source, config, n)
