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
# # Does coupling predict which blocks can go?
#
# If two blocks act along the same directions, one might do the work of the other. So trained networks were edited: a
# block was skipped; two were swapped, the later one was replaced by the earlier, both were given the mean of their
# weights, or both ran side by side. The cost of an edit is the rise of the loss on held-out text. This notebook asks
# what predicts that cost: coupling, or something that is easier to measure. Nothing here runs a model: it reads
# `data/edits.csv`, which `python -m companion.training.edits MODEL` makes.

# %% tags=["parameters", "hide-input"]
model: str = "smollm2-135m"  # model that stands first in the figures, if it is in the table
table: str = ""  # path of a table of edits, or empty for the book's

# %% tags=["hide-input"]
from companion.figures import edits as figures
from companion.figures.show import made_by, remember, show
from companion.notebook import parameters
from companion.notebook.heads import headed
from companion.tables import edits

p = parameters.check_parameters(globals(), declared=("model", "table"))
command = made_by("edits", vars(p))

# %% [markdown]
# ## Edits and their costs
#
# Nats per token over the last half of each passage. Pairs are judged as far apart as every one was edited in all ways,
# up to four blocks.

# %%
measured = edits.finished(edits.edits(table or None), least=1, first=model)
headed(measured.groupby(["model", "edit"])["loss_rise"].describe()).round(3)

# %% [markdown]
# ## What predicts the cost
#
# Spearman's rank correlation of each predictor with the cost. Of pairs each distance's mean rank is taken out of both,
# but for distance itself. A block is in many pairs: the error is that of leaving out one block with all its pairs. The
# null permutes a predictor within distances, which takes pairs for independent, and decides nothing.

# %%
show(
    figures.draw_predictors,
    figures.take_predictors(measured),
    name="edits-predictors",
    caption="Rank correlation of each predictor with the rise of the loss: over blocks (skip), or over pairs equally "
    "far apart. Lines: 95 % intervals over blocks. Pale: 95 % of permutations among pairs equally far apart.",
)

# %% [markdown]
# ## Does coupling add anything?
#
# Ranks of costs are predicted by a line from block influence and distance, and from these with coupling. Blocks are cut
# into five stretches; pairs inside a stretch are predicted by a fit that saw no block of it. `without`: R² without
# coupling; `value`: what coupling adds to it.

# %% tags=["nbval-check-output"]
for name, rows in measured.groupby("model", sort=False):
    print(name, edits.added(rows)[["edit", "predictor", "without", "value", "low", "high"]].round(2), sep="\n")

# %% [markdown]
# ## One block after the other
#
# Blocks are left out in the order that each predictor gives, from 1 to 10 of them. Beside them stand random choices,
# and the best that is found when, one at a time, the block goes without which the loss is then lowest. It is looked
# for among the twelve that cost least alone.

# %%
show(
    figures.draw_removal,
    figures.take_removal(measured),
    name="edits-removal",
    caption="Rise of the loss when blocks are left out in the order of each predictor, least important first. Dashed: "
    "median of random choices; pale: from the best choice to their 95th percentile. Best: chosen by the loss itself.",
)

# %% tags=["hide-input"]
remember("edits", edits.numbers(measured))
