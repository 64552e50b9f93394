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
# # Fewer bits
#
# The paper's models were loaded in four bits, so that large ones fit on one card, and the released code differentiates
# in whatever type a model runs in. Neither was compared with a measurement in full precision. This notebook repeats
# one measurement of one model in several precisions and asks three questions of each: how far do the singular values
# of the block Jacobians move, how far do their singular vectors turn, and does the coupling of blocks survive?
#
# Bits are lost in two different places. Narrow *weights* make another model, whose blocks are
# linearised at other states. Narrow *arithmetic* computes the derivative of the same model less exactly.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precisions: str = "bfloat16,int8,nf4,fp4"  # compared with float32: bfloat16, float16, int8, nf4 and fp4, or some
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
k: int = 10  # number of singular vectors compared, from 1 to the model's width
token: int = -1  # token position whose Jacobian is taken; -1 is the last
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of everything drawn at random

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import depth, precision
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from coupling_lib.measures.precision import chosen_precisions

p = parameters.check_parameters(
    globals(), declared=("model", "precisions", "memory", "revision", "prompts", "k", "token", "seed")
)
command = made_by("precision", vars(p))

# %% [markdown]
# ## Measurement
#
# The notebook measures the untrained model first and then the trained one in each precision. One model is in memory at
# a time. Blocks with narrow weights are run and differentiated in float32 with the values that their weights stand for,
# which measures the weights' error alone; for an int8 block this leaves out the rounding of its activations, which has
# no derivative. For a few of the prompts the derivative is taken again in bfloat16 and in float16, at the same weights
# and the same states.
#
# The reference is float32 as the model was loaded. The weights of a GGUF file were rounded to few bits before; for such
# a model this measures a second rounding.
#
# A precision that is not available for this model is left out, and a line below says so.

# %%
loaded = cl.load_model(model, memory=memory or None, revision=revision or None, untrained=True, seed=seed)
choices.check_k(loaded, k)
texts = choices.chosen_prompts(prompts, seed)
given = cl.inputs_for(loaded, texts, seed=seed)
untrained = cl.sweep(cl.measure_depth, loaded, given, ks=(k,), token=token, variables=depth.DRAWN)
del loaded

# %%
narrow = chosen_precisions(precisions)
measured = cl.measure_precision(
    model, texts, narrow, k, token, memory=memory or None, revision=revision or None, seed=seed
)
print(measured.attrs["left_out"] or "All of these precisions were measured.")

# %% [markdown]
# Two values give the scale: the coupling of the untrained model, and its value by chance with the singular values of
# the trained one, both in float32.

# %%
means = precision.take_coupling(measured, untrained)

# %% [markdown]
# ## Singular values
#
# The figure shows how much louder or quieter a block answers in its strongest directions. An error that is the same
# at every rank is a change of the block as a whole; one that grows with rank is noise that drowns the weaker
# directions.

# %%
show(
    precision.draw_values,
    precision.take_values(measured),
    name="precision-values",
    caption="Relative error of the singular values of block Jacobians against float32 weights. Lines are medians and "
    "bands quartiles: on the left over prompts and blocks, on the right over prompts and ranks.",
)

# %% [markdown]
# ## Singular vectors
#
# Single vectors are not comparable: each has a free sign, and two with nearly equal singular values may mix. The space
# that the top $K$ span is. Its *principal angles* to the same space in float32 are all 0 where nothing moved. The mean
# of their squared cosines is the share of the top $K$ directions that survives.

# %%
show(
    precision.draw_vectors,
    precision.take_vectors(measured),
    name="precision-vectors",
    caption="(a) Principal angles between the spaces of the top K singular vectors in a precision and in float32, "
    "left and right vectors pooled, median and quartiles over prompts and blocks. (b) Share of these directions "
    "kept, by block. Dashed: by chance.",
)

# %% [markdown]
# ## Coupling of every pair of blocks
#
# If a precision were harmless, all dots would lie on the diagonal. Dots below it are pairs whose coupling it hides. A
# cloud that lies flat says more: the pairs that stand out in float32 then no longer do.

# %%
show(
    precision.draw_pairs,
    precision.take_pairs(measured),
    name="precision-pairs",
    caption="Coupling of each ordered pair of different blocks, mean over "
    "prompts, against its value in float32. Dashed: by chance, with the same singular values.",
)

# %% [markdown]
# ## Mean coupling
#
# The number that the paper correlates with benchmark scores is a mean over all pairs. Errors of single pairs may
# cancel in it, or add up to a bias. Differences are taken prompt by prompt, which removes what prompts differ in.

# %%
show(
    precision.draw_coupling,
    means,
    name="precision-coupling",
    caption=f"{model}: (a) mean coupling over pairs of different blocks; (b) its difference from float32 on the same "
    "prompt. Bars: 95 % intervals over prompts.",
)

# %% [markdown]
# ## Weights or arithmetic?
#
# Each row is a precision of the weights. The error of the weights is against float32 weights. The errors of the
# arithmetic are against float32 arithmetic at the same weights and states; they include that narrow arithmetic rounds
# each weight when it multiplies with it, as a quantised layer with a 16-bit compute type does.

# %%
show(
    precision.draw_sources,
    precision.take_sources(measured),
    name="precision-sources",
    caption="Errors by where they come from, medians with quartiles: of singular values over prompts, blocks and "
    "ranks, of principal angles over prompts, blocks and order, of coupling over prompts and pairs of blocks.",
)

# %% [markdown]
# ## Are four bits harmless?
#
# The table gives the median error of singular values and the share of the top directions kept, in per cent; mean
# coupling and its difference from float32 with a 95 % interval; how much of the coupling beyond chance is lost, in per
# cent; and the correlation over pairs of blocks with float32. Other models may lose more or less: run this notebook on
# the model in question.

# %% tags=["hide-input"]
print(precision.take_summary(measured).to_string(float_format="%.3f"))

# %% [markdown]
# The next table gives the mean couplings alone, in two decimals:

# %% tags=["nbval-check-output"]
print(precision.take_summary(measured)["coupling"].to_string(float_format="%.2f"))

# %% tags=["hide-input"]
remember("precision", precision.numbers_of(measured, untrained))
