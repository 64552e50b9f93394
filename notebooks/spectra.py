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
# # Spectra
#
# A block's residual Jacobian $J_l$ stretches some directions of the residual stream more than others. Its singular
# values $\sigma_1 \ge \sigma_2 \ge \dots$ say by how much, whatever the directions are. This notebook follows them
# through the depth of a model, before and after training, and asks whether the directions that a block reads (right
# singular vectors $v_i$) are those that it writes (left ones, $u_i$).

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
k: int = 15  # number of singular values and vectors, from 2 to half of the model's width
blocks: str = ""  # blocks whose whole spectrum is drawn, from 1, such as 1,6,12; empty for four over the whole depth
token: int = -1  # token position whose Jacobian is taken; -1 is the last
fit_from: int = 0  # first block of the line through 1/s_1, from 1; 0 for 10, or after a quarter of fewer than 20 blocks
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import spectra
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables.arrays import side_by_side
from coupling_lib.measures.random_bases import spectra_null
from coupling_lib.measures.spectra import spectra_fits

p = parameters.check_parameters(
    globals(),
    declared=("model", "precision", "memory", "revision", "prompts", "k", "blocks", "token", "fit_from", "seed"),
)
command = made_by("spectra", vars(p))

# %% [markdown]
# ## Measurement
#
# One pass through the model per prompt; then every block's Jacobian at the chosen token, its $K$ largest singular
# triplets, and for a few blocks all singular values.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
whole = choices.spread_blocks(loaded, blocks, k)
texts = cl.inputs_for(loaded, choices.chosen_prompts(prompts, seed), seed=seed)
trained = cl.sweep(cl.measure_spectra, loaded, texts, k=k, token=token, whole=tuple(whole))

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.sweep(cl.measure_spectra, loaded, texts, k=k, token=token, whole=tuple(whole))
del loaded

# %%
both = {"untrained": untrained, "trained": trained}
networks = side_by_side(**both)
fits = side_by_side(**{name: spectra_fits(ds, fit_from - 1 if fit_from else None) for name, ds in both.items()})
nulls = side_by_side(**{name: spectra_null(ds, seed=seed) for name, ds in both.items()})

# %% [markdown]
# ## The largest singular values
#
# Suppose that an untrained network adds blocks of about the same size to a stream that grows. A block that first
# normalises its input answers to a change in proportion to one over the length of the stream, so its singular values
# should fall with depth. Training is free to do otherwise; look for blocks that stand out and for first singular values
# that leave the rest behind.

# %%
show(
    spectra.draw_top,
    spectra.take_top(networks),
    name="spectra-top",
    caption="Largest singular values of each block's Jacobian: medians over prompts, with quartiles. The first ten in "
    "the network's colour, the next ones in another.",
)

# %% [markdown]
# ## One over depth?
#
# If $\sigma_1$ fell as one over depth, $1/\sigma_1$ would lie on a straight line. The paper finds no such law in
# trained models and more of one in untrained ones. The line is fitted to the later blocks only: the released code
# starts at depth 10, and so does this figure, except in models of fewer than 20 blocks, where the first quarter is left
# out. `fit_from` sets another start.

# %%
show(
    spectra.draw_inverse,
    spectra.take_inverse(networks, fits),
    name="spectra-inverse",
    caption=f"{model}: inverse of the largest singular value against depth, medians over prompts, and the "
    "least-squares line over the blocks that it spans. R² is the mean over prompts, each with a line of its own, with "
    "its interval.",
)

# %% [markdown]
# ## The whole spectrum
#
# With both axes logarithmic a power law is a straight line. The exponent $a$ of $\sigma_i \propto i^{-a}$ is fitted to
# the stronger half of the values; 0 is a flat spectrum. Where a block reads the stream through norms alone, one or two
# singular values are nearly 0 and fall below the panel: a norm removes the mean or the length of what it normalises,
# and a block behind it cannot answer to them.

# %%
show(
    spectra.draw_whole,
    spectra.take_whole(networks),
    name="spectra-whole",
    caption="All singular values of a few blocks: medians over prompts, with quartiles. The panel ends under the 2 % "
    "weakest values. The exponent a is that of the power law through the stronger half, mean over prompts.",
)

# %% [markdown]
# ## Left against right
#
# The stable rank $\lVert J\rVert_F^2/\sigma_1^2$ counts the directions that carry a Jacobian, weak ones counting for
# little. If left and right singular vectors were equal up to sign, all $|u_i^\top v_i|$ would be 1, and the matrix
# $V^\top J\,U$ diagonal. The released code calls this order of the vectors `vju`; what is shown is $1-\tilde m$ of that
# matrix, with $\tilde m$ the share of it that lies off the diagonal, as in the depth notebook. Unrelated vectors of
# width $d$ have a mean $|u^\top v|$ of about $\sqrt{2/\pi d}$.

# %%
show(
    spectra.draw_alignment,
    spectra.take_alignment(networks, nulls),
    name="spectra-alignment",
    caption="Stable rank; mean absolute cosine of left with right singular vectors; coupling of a block with itself, "
    "left and right vectors exchanged (V'JU). Means over prompts with 95 % intervals; dashed: by chance, with the "
    "same singular values, in closed form (middle) and from 3,000 draws with their standard error (right).",
)

# %% [markdown]
# ## In numbers
#
# The table gives means over blocks and prompts: stable rank, alignment with its 95 % interval, exchanged coupling,
# and $R^2$ of the line through $1/\sigma_1$ with its interval.

# %% tags=["nbval-check-output"]
summary = spectra.take_summary(networks, fits, nulls)
print(summary.to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
remember("spectra", spectra.numbers_of(networks, fits, nulls))
