# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A model's card
#
# A card is what one model's coupling comes to, in one small record. All cards are measured in the same way, so that
# they can be set beside each other: the chapter Atlas does. This notebook measures a model, shows its card, and writes
# it into a file.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
network: str = "trained"  # trained, or untrained for the same model with freshly drawn weights
prompts: int = 24  # number of embedded prompts, or of pictures; or a set with a number, as gsm8k:50
seed: int = 0  # seed of the untrained weights and of the selection of prompts
out: str = ""  # the file that the card is written to; empty for one in results/atlas

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import depth
from companion.figures.show import made_by, remember, show
from companion.notebook import parameters
from companion.tables import card
from companion.tables.arrays import cells, side_by_side
from coupling_lib.datasets.parts import with_shared_part

p = parameters.check_parameters(
    globals(), ("model", "precision", "memory", "revision", "network", "prompts", "seed", "out")
)
command = made_by("card", vars(p))

# %% [markdown]
# ## Measurement
#
# The Jacobians are taken at the last token of each prompt, of a vision model at its class token. Coupling is
# $1-\tilde m$ with $K = 10$ ([depth](depth.ipynb)), of whole Jacobians and of their traceless part. Beside it stand the
# straightness and the growth of the token's path ([trajectories](trajectories.ipynb)). A decoder's lens
# ([lenses](lenses.ipynb)) says from which depth on the state, carried into the last one, gives the model's own next
# token.

# %%
loaded = cl.load_model(
    model,
    precision=precision,
    memory=memory or None,
    revision=revision or None,
    untrained=network == "untrained",
    seed=seed,
)
record, measured = card.measure_card(loaded, prompts, seed)
del loaded

# %%
show(
    depth.draw_distribution,
    depth.take_distribution(
        with_shared_part(side_by_side(trained=measured["depth"])),
        null=cl.null_of(measured["depth"], "normalized_miscoupling"),
    ),
    name="card-coupling",
    caption="(a) Coupling per prompt, with median and quartiles. (b) Mean coupling against the distance between "
    "blocks, with 95 % intervals over prompts. Dashed: by chance.",
)

# %% [markdown]
# ## The card
#
# The table holds the numbers of the card that are one for the model. The file holds, beyond these, coupling by distance
# and the singular values of every block.

# %% tags=["nbval-check-output"]
summary = card.table_of(record)
print(summary.to_string(float_format="%.3f", na_rep=""))

# %% tags=["hide-input"]
card.write_card(record, out)
remember("card", cells(summary, {"value": "{}"}))
