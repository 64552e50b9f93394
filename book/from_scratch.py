"""Coupling of two blocks in plain PyTorch, without coupling_lib."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE, FIRST, SECOND, K = "data/checkpoints/nano-neox", 4, 6, 10
# Change this line for your model.
NAME, TOKENIZER, BLOCKS = f"{HERE}/step100", HERE, "gpt_neox.layers"

model = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
blocks, calls = model.get_submodule(BLOCKS), {}


def record(block, inputs, more):
    """Store a block's stream and the other arguments of its call."""
    calls.setdefault(block, (inputs, more))


def jacobian(block):
    """Differentiate what a block adds w.r.t. the last token's state."""
    (x, *others), more = calls[block]

    def added(state):
        stream = torch.cat([x[:, :-1], state[None, None]], dim=1)
        out = block(stream, *others, **more)
        return (out if torch.is_tensor(out) else out[0])[0, -1] - state

    return torch.autograd.functional.jacobian(added, x[0, -1])


for block in blocks:
    block.register_forward_pre_hook(record, with_kwargs=True)
with torch.no_grad():
    model(ids, use_cache=False)

J, other = jacobian(blocks[FIRST]), jacobian(blocks[SECOND])
U, S, Vh = torch.linalg.svd(other)
A = U[:, :K].T @ J @ Vh[:K].T  # diagonal where the two blocks are coupled

on_diagonal = float(A.diagonal().square().sum() / A.square().sum())
coupling = 1 - (1 - on_diagonal) ** 0.5
share = f"{on_diagonal:.0%} of A lies on its diagonal"
print(f"coupling {coupling:.3f}: {share}, by chance {1 / K:.0%}")
