"""Lenses with later targets, against `JacobianLens.fit` of TransformerLens on the same model and the same ids.

    python -m benchmarks.jacobian_lens_peer write FOLDER    # here: the model and some texts
    python benchmarks/jacobian_lens_peer.py fit FOLDER      # where transformer-lens is installed
    python -m benchmarks.jacobian_lens_peer compare FOLDER  # here: latest_jacobian_lens_peer.json

The second step runs in an environment of its own, with nothing of this library: `pip install torch==2.13.0`, and then
`pip install transformer-lens==4.3.0`. The file that it saves is read as any foreign lens.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import torch

MODEL, SKIP, TEXTS = "nano-neox", 16, 4
RECORD = Path(__file__).with_name("latest_jacobian_lens_peer.json")


def write(folder: Path) -> None:
    """Write the model as others read it, and texts long enough for a lens."""
    import coupling_lib as cl

    model = cl.load_model(MODEL)
    texts = [prompt.text for prompt in cl.load_prompts()]
    texts = [text for text in texts if len(model.tokenizer(text)["input_ids"]) > SKIP + 8][:TEXTS]
    model.hf.save_pretrained(folder / "model")
    model.tokenizer.save_pretrained(folder / "model")
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def fit(folder: Path) -> None:
    """Fit a lens with TransformerLens, save it in its format, and write down the ids that it made of the texts."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.tools.analysis import JacobianLens
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hf = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = TransformerBridge.boot_transformers(str(folder / "model"), hf_model=hf, tokenizer=tokenizer, device="cpu")
    texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    lens = JacobianLens.fit(model.eval(), texts, corpus="texts", skip_first_positions=SKIP, show_progress=False)
    lens.save(str(folder / "theirs.pt"), dtype=torch.float32)
    read = lens.readout(model, texts[0], positions=[-1], top_k=5)
    said = {
        "ids": [model.to_tokens(text)[0].tolist() for text in texts],
        "readout": {layer: found[0].tolist() for layer, found in read.lens_topk_indices.items()},
        "versions": {name: version(name) for name in ("transformer-lens", "torch", "transformers")},
    }
    (folder / "theirs.json").write_text(json.dumps(said), encoding="utf-8")


def compare(folder: Path) -> None:
    """Compare both depth by depth, and what both read at one token."""
    import coupling_lib as cl
    from benchmarks import machine
    from coupling_lib.store.lens_files import read_lens

    model, theirs = cl.load_model(MODEL), json.loads((folder / "theirs.json").read_text(encoding="utf-8"))
    traces = [cl.trace(model, torch.tensor([ids])) for ids in theirs["ids"]]
    ours = torch.stack([cl.lens(trace, targets="later", skip=SKIP).dense() for trace in traces]).mean(dim=0)
    file = read_lens(folder / "theirs.pt")
    apart = {depth: float((ours[depth] - J).norm() / J.norm()) for depth, J in file.J.items()}
    read = file.readout(traces[0], k=5)
    wanted = [theirs["readout"][str(depth - 1)] for depth in read.depths]
    result = {
        "machine": machine.facts() | {"command": "python -m benchmarks.jacobian_lens_peer compare FOLDER"},
        "peer": theirs["versions"],
        "model": MODEL,
        "skip": SKIP,
        "tokens": [len(ids) for ids in theirs["ids"]],
        "depths": sorted(apart),
        "largest_relative_difference": max(apart.values()),
        "same_five_tokens": sum(a == b for a, b in zip(read.ids.tolist(), wanted, strict=True)) / len(wanted),
    }
    machine.write(RECORD, result)
    print(f"largest relative difference over {len(apart)} depths: {max(apart.values()):.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("write", "fit", "compare"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    {"write": write, "fit": fit, "compare": compare}[given.step](given.folder)
