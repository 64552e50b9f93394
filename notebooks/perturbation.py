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
# # Perturbations
#
# Jacobians describe small changes. How small? This notebook puts noise on the embedding of one token and follows the
# token through the blocks three times: through the network itself, through the linearisation $\delta^l = (I +
# J_l)\,\delta^{l-1}$ along the clean run, and through the same linearisation with directions drawn by chance. It
# compares the perturbed states with the clean ones, before and after training.
#
# The paper's figure 32 compares the first with the last layer; half of its caption is not known to us. The rest is
# our choice: the noise has a uniformly random direction and a length relative to the embedding; one token is
# perturbed and the same one is followed; the linearisation is carried along the whole depth. The parameter `kind`
# offers other noise: normal with about that length, or normal with the level as the standard deviation of each
# coordinate.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
noise: str = "0.03,0.1,0.3,1,3"  # lengths of the noise relative to the embedding, separated by commas
kind: str = ""  # of noise: empty as above, gaussian: normal of about that length, absolute: normal of that deviation
draws: int = 4  # random directions per prompt
token: int = -1  # token position that is perturbed and followed; -1 is the last
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the noise

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import perturbation
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables.arrays import side_by_side

p = parameters.check_parameters(
    globals(),
    declared=("model", "precision", "memory", "revision", "prompts", "noise", "kind", "draws", "token", "seed"),
)
command = made_by("perturbation", vars(p))

# %% [markdown]
# ## Measurement
#
# Each noisy run is an intervention: the input of the first block is changed at one token while the model runs, all
# noise levels and draws in one batch. The Jacobian $J_{tt}$ moves the perturbed token alone. Where attention is causal
# that is no restriction: earlier tokens do not read this one, and what later ones read does not come back to it. In an
# encoder the other tokens move too and act back, which the linearisation leaves out.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
texts = cl.inputs_for(loaded, choices.chosen_prompts(prompts, seed), seed=seed)
levels = parameters.parse_levels(noise)
how = {"noise": levels, "draws": draws, "token": token, "seed": seed, "kind": kind or None}
trained = cl.sweep(cl.measure_perturbation, loaded, texts, **how)

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.sweep(cl.measure_perturbation, loaded, texts, **how)
del loaded

# %%
networks = side_by_side(untrained=untrained, trained=trained)

# %% [markdown]
# ## Through the depth
#
# At the embedding the cosine is set by the noise level alone. From there on, for a change across the state, it rises
# where the state grows faster than the change, and falls where the change grows faster. Broad and dashed lines part
# where the linearisation stops describing the network.

# %%
show(
    perturbation.draw_depth,
    perturbation.take_depth(networks),
    name="perturbation-depth",
    caption="Cosine of the perturbed with the clean state at every level: the network (broad) and its linearisation "
    "(dashed). Marks: after the first and after the last block. Means over prompts and draws with 95 % "
    "intervals.",
)

# %% [markdown]
# ## First block, last block
#
# This figure shows the same against the noise level. The paper reports that the cosine stays high for small noise and
# is clearly lower at the first layer than at the last. The value by chance shows how much of this needs no particular
# directions.

# %%
show(
    perturbation.draw_ends,
    perturbation.take_ends(networks),
    name="perturbation-first-last",
    caption="Cosine of the perturbed with the clean state against the noise level, after the first and after the last "
    "block: network, linearisation, and linearisation by chance, with the same singular values. Means over"
    " prompts and draws with 95 % intervals.",
)

# %% [markdown]
# ## Amplification, and where linearity ends
#
# The left panel shows the length of the change at the smallest noise level. The dashed line should lie on the broad one
# there, and the dotted line is what the singular values alone would do. The right panel shows how far the two changes
# of the last state are apart. At a relative error of 1 the linearisation is as far off as a prediction of no change.
# Where the noise is small the error grows in proportion to it.

# %%
show(
    perturbation.draw_error,
    perturbation.take_error(networks),
    name="perturbation-error",
    caption=f"{model}: (a) length of the change relative to the noise, at the smallest noise level: network (broad), "
    "linearisation (dashed), and linearisation by chance (dotted); (b) distance between the changes of "
    "network and linearisation after the last block, relative to the network's. Means over prompts and draws with "
    "95 % intervals.",
)

# %% [markdown]
# ## In numbers
#
# The table gives the cosine with the clean state at the middle one of the noise levels: at the embedding, after the
# first and after the last block, with the 95 % interval of the latter.

# %% tags=["nbval-check-output"]
print(perturbation.take_summary(networks).to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
remember("perturbation", perturbation.numbers_of(networks))
