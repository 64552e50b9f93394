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
# # Lenses
#
# What does a state in the middle of the network already predict? A lens carries it to the last depth, where
# the model's final norm and unembedding turn it into a distribution over tokens. In a causal decoder whose blocks read
# the last block's stream and nothing else of another block, the derivative of a token's last state, before the final
# norm, by its state at depth $l$ is the product of the blocks' own maps, $(I + J_L) \cdots (I + J_{l+1})$. This
# notebook reads with it, and with five others, before and after training.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
seed: int = 0  # seed of the untrained weights and of the selection of prompts

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import lenses
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables.arrays import side_by_side
from companion.tables.lenses import measure_readouts, operations, other_texts, words_of

p = parameters.check_parameters(
    globals(),
    declared=("model", "precision", "memory", "revision", "prompts", "seed"),
)
command = made_by("lenses", vars(p))

# %% [markdown]
# ## Measurement
#
# Each prompt is read at its last token. Lenses that need fitting are fitted on other embedded prompts, on all of their
# tokens but the first.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
texts = cl.inputs_for(loaded, choices.chosen_prompts(prompts, seed), seed=seed)
fitted_on = other_texts(texts)
trained = cl.sweep(measure_readouts, loaded, texts, fitted_on=fitted_on)
words = words_of(cl.lens(cl.trace(loaded, texts[0])))
counted = operations(loaded)

# %% [markdown]
# ## One text, every depth
#
# The state as it is, read by the model's own head, beside the same state carried there by its own derivative.

# %%
show(
    lenses.draw_readout,
    lenses.take_readout(words),
    name="lenses-readout",
    caption=f"{model}: the three strongest tokens at every depth, the model's own answer on top: read from the state "
    "as it is (logit lens), and from the state times the last state's derivative with respect to it (own "
    "lens). Shades: probability.",
)

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.sweep(measure_readouts, loaded, texts, fitted_on=fitted_on)
del loaded

# %%
networks = side_by_side(untrained=untrained, trained=trained)

# %% [markdown]
# ## How far each depth is from the answer
#
# The distance is the Kullback-Leibler divergence of what a lens says from what the model says at the end. An affine fit
# may use whatever correlates with the answer; a derivative follows what the network does with this very state.

# %%
show(
    lenses.draw_divergence,
    lenses.take_divergence(networks),
    name="lenses-divergence",
    caption=f"{model}: Kullback-Leibler divergence of each lens from the model's own answer, by depth. No state: the "
    "mean last state of other texts. Means over prompts with 95 % intervals.",
)

# %% [markdown]
# ## One position, or its futures as well
#
# Programs that fit Jacobian lenses add to a token's derivative what the token does to all later ones. That is another
# matrix, and takes as many passes backwards through the whole model as it is wide.

# %%
show(
    lenses.draw_futures,
    lenses.take_futures(networks),
    name="lenses-futures",
    caption=f"{model}: distance between the mean lens with futures and the mean lens of a token's own position, "
    "relative to the length of the latter (Frobenius), by depth.",
)

# %% [markdown]
# ## In numbers
#
# Means over the inner depths: divergence in nats, and the share of prompts at which the strongest token is the
# model's own.

# %% tags=["nbval-check-output"]
print(lenses.take_summary(networks).to_string(float_format="%.3f"))
print(
    "operations of one token's lens, of passes backwards, their ratio, and tokens:",
    *(f"{value:.3g}" for value in counted.values()),
)

# %% tags=["hide-input"]
remember("lenses", lenses.numbers_of(networks) | counted)
