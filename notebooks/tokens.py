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
# # Coupling across tokens
#
# A block treats every token of a prompt with the same weights, but not with the same Jacobian: attention and the
# non-linearities make $J^l_{t_1t_2}$, the answer at token $t_2$ to a change at token $t_1$, depend on the whole prompt.
# This notebook asks whether these matrices nevertheless share their singular vectors from token to token: within one
# block, and between two blocks.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
example: str = "What is the capital of France? The capital is"  # prompt whose matrices are drawn
prompts: int = 5  # further embedded prompts for the means; or a set's name or file, as gsm8k:50
pair: str = ""  # two blocks, from 1: whose Jacobian and whose vectors, such as 9,10 or 7,7; empty for two deep ones
k: int = 10  # number of singular vectors compared, from 2 to the model's width
tokens: int = 12  # how many tokens are compared, the last ones that qualify
token_in: int = 1  # position of the fixed input token, from 0
token_out: int = -1  # position of the fixed output token; -1 is the last
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import tokens as figures
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables.arrays import side_by_side
from coupling_lib.datasets.parts import with_shared_part
from coupling_lib.measures.random_bases import null_with_draws, pair_spread
from coupling_lib.measures.tokens import token_comparisons, token_reports

_more = ("example", "prompts", "pair", "k", "tokens", "token_in", "token_out", "seed")
p = parameters.check_parameters(globals(), declared=("model", "precision", "memory", "revision", *_more))
command = made_by("tokens", vars(p))

# %% [markdown]
# ## Three comparisons
#
# With $J$ a Jacobian of block $l$ and $U', V'$ the singular vectors of one of block $l'$, each comparison is a coupling
# matrix $A = U'^\top_K J\,V'_K$:
#
# - **self**: $J = J^l_{tt}$ against the vectors of $J^{l'}_{t't'}$. How does each token answer to itself?
# - **fixed input**: $J = J^l_{t_1t}$ against the vectors of $J^{l'}_{t_1t'}$. How do different tokens answer to one?
# - **fixed output**: $J = J^l_{tt_2}$ against the vectors of $J^{l'}_{t't_2}$. How does one token answer to different
#   ones?
#
# The last two are *context* coupling. No skip path runs between different tokens, so nothing is subtracted from the
# derivative of the block. From $J_{tt}$ the identity is subtracted. A causal model lets a token see only earlier
# ones. The tokens that are compared then lie after the fixed input or before the fixed output.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
choices.check_k(loaded, k)
comparisons = token_comparisons(choices.chosen_pair(loaded, pair), token_in, token_out)
between, within = token_reports(comparisons)
texts = cl.inputs_for(loaded, [example, *choices.chosen_prompts(prompts, seed)], seed=seed)
trained = {
    name: cl.sweep(cl.measure_tokens, loaded, texts, k=k, tokens=tokens, variables=figures.DRAWN, **chosen)
    for name, chosen in comparisons.items()
}

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = {
    name: cl.sweep(cl.measure_tokens, loaded, texts, k=k, tokens=tokens, variables=figures.DRAWN, **chosen)
    for name, chosen in comparisons.items()
}
del loaded

# %% [markdown]
# All figures show one way of measuring the distance from perfect coupling, the off-diagonal share
# $\tilde m = \lVert A - \mathrm{Diag}\,A\rVert_F / \lVert A\rVert_F$; *coupling* is $1-\tilde m$. Beside it stands its
# value by chance, that of directions drawn at random with the same singular values, and its standard error. A stricter
# chance, *conjugated*, turns the second matrix as a whole, $J' \to Q J' Q^\top$ with a uniformly random rotation $Q$,
# and so keeps the angles between the left and right vectors of that matrix ([nulls](nulls.ipynb)).
#
# The isotropic part of a matrix, $t I$ with $t = \mathrm{tr} J/d$, scales every direction alike: it counts as coupling
# and needs no shared direction. The *traceless part* of the trained model is without it: $J - tI$ with singular vectors
# of its own ([nulls](nulls.ipynb)).

# %%
networks = {
    name: with_shared_part(side_by_side(untrained=untrained[name], trained=trained[name])) for name in comparisons
}
nulls = {name: null_with_draws(trained[name], seed=seed) for name in comparisons}

# %% [markdown]
# ## Self-coupling
#
# Row and column say which token's Jacobian and which token's singular vectors. A grid full of diagonals means that the
# two blocks work along the same directions whatever the token; the paper reports this for large trained models, and
# nothing of the kind before training.

# %%
show(
    figures.draw_grid,
    figures.take_grid(networks[between[0]], null=nulls[between[0]]),
    name="tokens-self",
    caption=figures.grid_caption(trained[between[0]]),
)

# %% [markdown]
# Within one block the matrix of a token with itself is diagonal by construction (grey on the right), and tokens
# with the same text often are close to it. Look at the untrained model too: at initialisation a block is almost the
# same linear map at every token, because its weights are, so that diagonals within one block are no effect of
# training. Coupling has to be learnt only between different blocks.

# %%
show(
    figures.draw_grid,
    figures.take_grid(networks[within[0]], null=nulls[within[0]]),
    name="tokens-within",
    caption=figures.grid_caption(trained[within[0]]),
)

# %% [markdown]
# ## Context coupling
#
# The next two figures hold one token fixed: first the token that is varied, then the token that is read. Each
# matrix comes from attention between two tokens and what the block makes of it; the paper finds coupling here as
# well, but less even.

# %%
show(
    figures.draw_grid,
    figures.take_grid(networks[between[1]], null=nulls[between[1]]),
    name="tokens-input",
    caption=figures.grid_caption(trained[between[1]]),
)

# %%
show(
    figures.draw_grid,
    figures.take_grid(networks[between[2]], null=nulls[between[2]]),
    name="tokens-output",
    caption=figures.grid_caption(trained[between[2]]),
)

# %% [markdown]
# ## Over prompts
#
# Each dot is one prompt, averaged over all pairs of different tokens. The shade around the value by
# chance holds 95 % of *single* random pairs: where all tokens share nearly one matrix, as in an untrained
# model, their mean is a single draw and may lie anywhere in it, however narrow its interval over prompts.

# %%
summary = figures.take_summary(networks, nulls=nulls)
show(
    figures.draw_summary,
    summary,
    name="tokens-summary",
    caption="Coupling between tokens, mean over all pairs of different tokens, for each kind of comparison. Dots are "
    "prompts, bars 95 % intervals of their mean. Dashed: by chance, with the middle 95 % of single draws. Dotted: by "
    "the stricter chance of each network.",
)

# %% [markdown]
# ## In numbers

# %% tags=["nbval-check-output"]
table = figures.summary_table(summary)
shown = [column for name in summary.network.values for column in (name, f"{name} conjugated")]
print(table[[*shown, "by chance"]].T.to_string(float_format="%.2f"))

# %% tags=["hide-input"]
remember("tokens", figures.numbers_of(summary, pair_spread(k), between=between, within=within))
