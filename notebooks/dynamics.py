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
# # Linear dynamics
#
# The paper reads a network as a linear system: each block multiplies the state of a token by $I + J_l$, so that
#
# $$x^L = (I + J_L)\cdots(I + J_1)\,x^0 ,$$
#
# and if all blocks share their singular vectors, left equal to right, then the part of the state along a shared
# direction grows by $1 + \sigma$ at each block (section 6.1; appendix A.5, equations 19 to 24). This notebook takes the
# Jacobians at the states that the network itself visits and asks how much of this holds, before and after training.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
k: int = 10  # number of singular vectors and shared directions, from 1 to the model's width
token: int = -1  # token position whose state is followed; -1 is the last
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import dynamics
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables.arrays import side_by_side

p = parameters.check_parameters(
    globals(), declared=("model", "precision", "memory", "revision", "prompts", "k", "token", "seed")
)
command = made_by("dynamics", vars(p))

# %% [markdown]
# ## Measurement
#
# One pass through the model per prompt gives every block's Jacobian at the chosen token. The notebook then takes
# products of these.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
choices.check_k(loaded, k)
texts = cl.inputs_for(loaded, choices.chosen_prompts(prompts, seed), seed=seed)
trained = cl.sweep(cl.measure_dynamics, loaded, texts, k=k, token=token, seed=seed)

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.sweep(cl.measure_dynamics, loaded, texts, k=k, token=token, seed=seed)
del loaded

# %%
networks = side_by_side(untrained=untrained, trained=trained)

# %% [markdown]
# ## How far the product carries
#
# The left panels compare the product from the embedding to each level with the state that the network reaches there.
# The right panels do so for the product from each level to the last. A cosine of 1 is the right direction. By chance,
# blocks have the same singular values and directions drawn at random, so the distance to the dashed lines is what the
# directions contribute.

# %%
show(
    dynamics.draw_carried,
    dynamics.take_carried(networks),
    name="dynamics-carried",
    caption=f"{model}: cosine of products of I + J with the true state, from the embedding to each level (left; "
    "dashed: by chance, with the same singular values) and from each level to the last (right). Means over prompts "
    "with 95 % intervals.",
)

# %%
show(
    dynamics.draw_carried,
    dynamics.take_carried(networks, "norm ratio"),
    name="dynamics-length",
    caption="Length: products of I + J applied to a state, relative to the state that the network reaches; 1 is right. "
    "Means over prompts with 95 % intervals; dashed: by chance, with the same singular values, 3,000 "
    "draws per prompt.",
)

# %% [markdown]
# ## Which linearised network?
#
# Five answers to what the linearised network makes of the embedding, each against the true last state:
#
# - *embedding*: no block at all;
# - *product*: all $L$ factors, as in the paper's equation 20;
# - *released*: the check in the released code, which leaves out the last block and compares with the last state *after*
#   the final norm;
# - *product with final norm*: all factors, the last one including the final norm, against the state after that norm.
#   The Jacobian of a norm has no component along the state that it normalises, so the cosine is near 0 by construction
#   wherever the norm's gains are nearly equal;
# - *affine*: $x^l = (I + J_l)\,x^{l-1} + b_l$ with the remainder $b_l = f^l(x^{l-1}) - J_l\,x^{l-1}$, which is exact.

# %%
show(
    dynamics.draw_routes,
    dynamics.take_routes(networks),
    name="dynamics-readings",
    caption="Readings of the linearised network against the last state: direction and length. Means over prompts with "
    "95 % intervals; the line at 1 is agreement.",
)

# %% [markdown]
# ## What the product leaves out
#
# A block that normalises its input cannot tell $x$ from $2x$; where it reads the stream only through that norm,
# $J_l\,x^{l-1}$ is 0 but for the small constant inside the norm, and the remainder is all that the block adds. (A block
# whose MLP reads the stream together with the attention's output, not beside it, keeps a part of $J_l\,x^{l-1}$.) The
# left panel measures it. Unrolled, the last state is a sum: what the product carries from the embedding, and what later
# factors make of each block's remainder. The right panel gives each term's component along the last state; together
# they make 1.

# %%
show(
    dynamics.draw_remainders,
    dynamics.take_remainders(networks),
    name="dynamics-remainders",
    caption="(a) Length of the linear part of a block's output relative to the output. (b) Share of the last state"
    " that comes from the embedding (level 0) and from the remainder of each block, carried on by the product. "
    "Means over prompts with 95 % intervals.",
)

# %% [markdown]
# ## Growth along shared directions
#
# The directions that blocks share most are taken to be the left singular vectors $u$ of the mean Jacobian. Along the
# first, the figure compares two predictions with what happens: $\prod(1+\sigma)$ with each block's own singular values
# (the paper's), and $\prod|1+u^\top J_l\,u|$, which knows how each block acts on that very direction. They agree only
# if blocks share vectors and left equals right.

# %%
show(
    dynamics.draw_growth,
    dynamics.take_growth(networks),
    name="dynamics-growth",
    caption="Growth since the embedding along the first shared direction: predicted, of a small change in the "
    "linearised network, and of the state's own component. Medians over prompts with quartiles; grey: the "
    "linearised network by chance, with the same singular values, along its own first direction, one draw per "
    "prompt.",
)

# %%
show(
    dynamics.draw_directions,
    dynamics.take_directions(networks),
    name="dynamics-directions",
    caption="Growth per block of every shared direction in the linearised network, against both predictions. Medians "
    "over prompts.",
)

# %% [markdown]
# ## Are left and right vectors equal?
#
# Equality up to sign is not enough: $u_i^\top v_i = 1$ makes a block lengthen the stream by $1+\sigma_i$ along the
# direction, $-1$ multiplies it by $1-\sigma_i$. So the figure keeps the sign.

# %%
show(
    dynamics.draw_left_right,
    dynamics.take_left_right(networks),
    name="dynamics-left-right",
    caption="Cosine of each left singular vector with its right one, mean over prompts; one dot per rank. Full coupling"
    " as in the paper's appendix has all at 1. Grey: plus and minus one over the root of the width, where two "
    "thirds of unrelated pairs lie.",
)

# %% [markdown]
# ## In numbers
#
# The table gives, in this order: the cosine of the product with the last state, its 95 % interval over prompts, the
# same cosine by chance and as the released code takes it; the share of the last state that is carried from
# the embedding; the mean signed cosine of left and right vectors; the growth per block along the first shared
# direction, predicted from singular values and measured in the linearised network.

# %% tags=["nbval-check-output"]
print(dynamics.take_summary(networks).to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
remember("dynamics", dynamics.numbers_of(networks))
