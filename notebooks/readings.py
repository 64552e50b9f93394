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
# # Rival readings
#
# The paper's text, its project page and the successive versions of its code do not compute the same number when they
# say *coupling*. All start from the singular vectors of block Jacobians; they differ in how they form and normalise the
# distance from perfect coupling, in what they make of that distance, and in which pairs, blocks and vectors enter. This
# notebook reads one measurement of one model in all of these ways, and shows which differences matter.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
k: int = 10  # number of singular vectors where a figure shows a single one, from 2 to the model's width
token: int = -1  # token position whose Jacobian is taken; -1 is the last
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import readings
from companion.figures.show import made_by, remember, show
from companion.notebook import parameters
from companion.notebook.choices import check_k, chosen_prompts
from companion.tables.arrays import side_by_side
from companion.tables.readings import several_ks

p = parameters.check_parameters(
    globals(), declared=("model", "precision", "memory", "revision", "prompts", "k", "token", "seed")
)
command = made_by("readings", vars(p))

# %% [markdown]
# ## Measurement
#
# All variants come out of one pass over the pairs of blocks, for several $K$. The pass is made twice: with every
# Jacobian taken at the block's own output (`block`), and as the released code does (`hidden_states`), where the last
# state has already gone through the final norm, so that the last Jacobian includes it.

# %%
boundaries = ("block", "hidden_states")
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
check_k(loaded, k)
texts = cl.inputs_for(loaded, chosen_prompts(prompts, seed), seed=seed)
shown = readings.DRAWN if k == readings.DRAWN_K else None  # what the figures below show; at another k all there is
settings = {"ks": several_ks(k, loaded.d_model), "token": token, "variables": shown}
trained = {at: cl.sweep(cl.measure_depth, loaded, texts, **settings, boundary=at) for at in boundaries}

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = {at: cl.sweep(cl.measure_depth, loaded, texts, **settings, boundary=at) for at in boundaries}
del loaded

# %% [markdown]
# A raw value means little: some variants are far from 0 and from 1 without any coupling. So each has its value by
# chance beside it, for the singular values of the model in question, with its standard error.

# %%
measured = {at: side_by_side(untrained=untrained[at], trained=trained[at]) for at in boundaries}
networks = measured["block"]
nulls = cl.null_of(networks, seed=seed)

# %% [markdown]
# ## Every variant as it is
#
# Each panel is one variant under its name in `coupling_lib.metrics.variants.VARIANTS`, where its formula stands. All
# are distances: 0 is perfect coupling. Look at the grey lines first. Where they climb or fall with $K$, values at
# different $K$ cannot be compared; where the two grey lines part, the variant responds to the singular values, and a
# trained and an untrained model differ in it before any direction is shared.

# %%
show(
    readings.draw_values,
    readings.take_values(networks, nulls),
    name="readings-values",
    caption="Mean of each variant over pairs of different blocks and over prompts, against the number K of singular "
    "vectors, with 95 % intervals over prompts. Grey: by chance, with the singular values of the untrained "
    "(dotted) and of the trained model (dashed).",
)

# %% [markdown]
# ## How far beyond chance
#
# The same values on one scale: 0 per cent is chance, 100 per cent is perfect coupling. None can
# exceed 100 per cent, but a variant that is not normalised can fall far below 0. The variants with `vju`, `uv` and `vu`
# in their names reach 100 per cent only if left and right singular vectors agree as well.

# %%
show(
    readings.draw_beyond_chance,
    readings.take_beyond_chance(networks, k, nulls),
    name="readings-beyond-chance",
    caption=f"{model}: share of the way from chance to perfect coupling, mean over pairs of different blocks, with "
    "95 % intervals over prompts. The scale is linear up to 5 per cent and logarithmic beyond.",
)

# %% [markdown]
# ## Do they rank pairs of blocks alike?
#
# A figure that shows which blocks are coupled most is the same in two variants if both put the pairs into the same
# order. Groups along the diagonal are families of readings; a row without ink is a variant that measures something
# else.

# %%
show(
    readings.draw_agreement,
    readings.take_agreement(networks, k),
    name="readings-agreement",
    caption="Spearman's rank correlation between variants over ordered pairs of different blocks of the trained model, "
    "mean over prompts; intervals are in the data.",
)

# %% [markdown]
# ## One measurement, many couplings
#
# Here the distance is turned into a coupling, in each of the ways found in the sources. Within a group one choice
# changes and everything else stays. The groups on what is made of $m$, the entries and the Jacobian vary the released
# code's normalised distance; the last two vary the default of this book, $1-\tilde m$. Compare each dot with the grey
# tick beside it rather than with the dots of other rows: chance alone sets rows apart.

# %%
show(
    readings.draw_choices,
    readings.take_choices(measured, k, nulls),
    name="readings-choices",
    caption="Mean coupling by each choice, all else being equal within a group, with 95 % intervals over "
    "prompts; the data name the variant of each row. Ticks: by chance, with each model's own singular values; the "
    "column gives those of the trained.",
)

# %% [markdown]
# ## Where the last block ends
#
# With the final norm counted in, the last Jacobian is another matrix, and so are its singular vectors; all other
# Jacobians stay as they are. Its pairs with the other blocks change, and through them a little the others' means.

# %%
show(
    readings.draw_boundaries,
    readings.take_boundaries(measured, k=k, nulls=nulls),
    name="readings-boundary",
    caption="Coupling of each block with all others in both roles, for the two "
    "boundaries of the last block; mean over prompts with 95 % intervals.",
)

# %% [markdown]
# ## In numbers
#
# The table gives the mean of every variant over pairs of different blocks, its value by chance for the trained model's
# singular values, and how far beyond chance the trained model is (1 would be perfect coupling).

# %% tags=["nbval-check-output"]
summary = readings.take_summary(networks, k, nulls)
print(summary.to_string(float_format="%.2f"))

# %% tags=["hide-input"]
remember("readings", readings.numbers_of(measured, k, nulls))
