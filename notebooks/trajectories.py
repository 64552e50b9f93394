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
# # Trajectories
#
# Block by block the residual stream of a token moves through a space of many dimensions:
# $x^0$ is the embedding, $x^l$ what leaves block $l$. If coupled blocks act along the same directions again and again,
# these paths should be straighter than chance, and their norms should grow exponentially. This notebook measures how
# far that is so, in the trained model and in the same model before training.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
others: str = ""  # further models in the same figures, separated by commas, as nano-llama,gpt2
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 24  # number of embedded prompts; or a set's name or file, as wikitext2:100
token: int = -1  # token position that is followed; -1 is the last
window: int = 0  # blocks in a window, odd; 0 for the paper's 11, or about half of a model that is not deep enough
turn: int = 0  # block that a line marks against depth, from 1; 0 for none, -1 for where the growth of the norm changes
seed: int = 0  # seed of the untrained weights and of the selection of prompts

# %% tags=["hide-input"]
from companion.figures import trajectories
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.notebook.shipped import shipped_networks
from companion.tables.arrays import side_by_side
from coupling_lib.measures.depth import other_models
from coupling_lib.measures.trajectories import compare_trajectories, measure_trajectories

p = parameters.check_parameters(
    globals(),
    declared=("model", "others", "precision", "memory", "revision", "prompts", "token", "window", "turn", "seed"),
)
command = made_by("trajectories", vars(p))

# %% [markdown]
# ## Measurement
#
# One pass through the model per prompt gives all states of all tokens; the last token's are scored. The untrained
# model has the same configuration and freshly drawn weights; one model is in memory at a time.

# %%
texts = choices.chosen_prompts(prompts, seed)
how = {"token": token, "window": window, "precision": precision, "seed": seed}
models = compare_trajectories([model], texts, memory=memory or None, revision=revision or None, **how)
for name in other_models(others, besides=model):  # what ships of a model is read without its weights
    found = shipped_networks(measure_trajectories, name, texts, **how)
    models |= {name: found} if found else compare_trajectories([name], texts, memory=memory or None, **how)

# %%
models = {name: side_by_side(**networks) for name, networks in models.items()}
networks = models[model]

# %% [markdown]
# ## Straight, exponential, even
#
# With the steps $\delta^l = x^l - x^{l-1}$ and the growth of the norm
# $\alpha^l = \ln(\lVert x^l\rVert / \lVert x^{l-1}\rVert)$, a path of $L$ steps has
#
# $$\mathrm{LSS} = \frac{L}{\bigl\lVert\sum_l \delta^l/\lVert\delta^l\rVert\bigr\rVert}, \qquad
#   \mathrm{ED} = \frac{\mathrm{Var}_l\,\alpha^l}{(\mathrm{Mean}_l\,\alpha^l)^2}, \qquad
#   \mathrm{CoV} = \frac{\sqrt{\mathrm{Var}_l\,\lVert\delta^l\rVert}}{\mathrm{Mean}_l\,\lVert\delta^l\rVert}.$$
#
# The line-shape score is 1 for a straight line, expodistance 0 for exact exponential growth, the coefficient of
# variation 0 for equally long steps. The paper reports that training lowers the first two, and that steps are evenly
# long before training.

# %%
show(
    trajectories.draw_scores,
    trajectories.take_scores(models),
    name="trajectories-scores",
    caption="Scores of the last token's path from the embedding to the last block's output, one dot per prompt, with "
    "median and quartiles. Variances are the population's; expodistance is a squared coefficient of variation.",
)

# %% [markdown]
# ## Against depth
#
# Where along the depth does this happen? A straight line in the panel of the norm, whose axis is logarithmic, is
# exponential growth. The logit lens reads a next-token distribution off each state with the model's own unembedding;
# its entropy says how undecided the model would be if it stopped there.

# %%
marked = choices.chosen_turn(turn, {name: both.sizes["block"] for name, both in models.items()})
profiles = trajectories.take_profiles(models, marked)
show(
    trajectories.draw_profiles,
    profiles,
    name="trajectories-profiles",
    caption=trajectories.profile_caption(profiles, found=turn < 0),
)

# %% [markdown]
# ## Paths of the tokens
#
# The figure shows all tokens of the first prompt in the two principal components of their *last* states. The
# components are fitted on these alone, so that a path which reaches outward early and stays on its ray has been
# heading for its end all along.

# %%
show(
    trajectories.draw_paths,
    trajectories.take_paths(models),
    name="trajectories-paths",
    caption="Tokens of one prompt in the principal components of the states that leave the last block, before the "
    "final norm. Paths end in a dot; the last token is the strong line in the colour of the text. A special token and "
    "one whose state is somewhere more than ten times as long as the median are left out. In brackets: a component's "
    "share of the variance.",
)

# %% [markdown]
# ## How much the reading matters
#
# The formulas leave room. *Which states*: with the embedding $x^0$ or without, and with the last state as the last
# block leaves it or after the final norm (as in Hugging Face's `hidden_states`). *Which formula*: the variance of a
# population or of a sample, and the coefficient of variation or its square, since what the paper calls a
# coefficient of variation in words is its square in the formula. Each reading has its name; the figures above show
# `default`. The first table is of the trained model, the second of the untrained one.

# %% tags=["nbval-check-output"]
print(trajectories.take_conventions(networks.sel(network="trained")).to_string(float_format="%.2f", na_rep=""))

# %% tags=["nbval-check-output"]
print(trajectories.take_conventions(networks.sel(network="untrained")).to_string(float_format="%.2f", na_rep=""))

# %% [markdown]
# ## In numbers
#
# The table gives medians over prompts, in the default reading.

# %% tags=["nbval-check-output"]
summary = trajectories.take_summary(models)
print(summary.to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
remember("trajectories", trajectories.numbers_of(networks))
