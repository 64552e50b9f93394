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
# # Emergence in training
#
# Is coupling a property of the architecture, or does training bring it about, and when? This notebook repeats the
# measurements of [depth](depth.ipynb) and [trajectories](trajectories.ipynb) at several steps of one model's
# training. Step 0 is the untrained model itself.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder, with revisions called stepN
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
steps: str = ""  # training steps such as 0,128,1000; empty for all of an embedded model, a spaced choice of Pythia's
prompts: int = 12  # number of embedded prompts; or a set's name or file, as mmlu:100
k: int = 10  # number of singular vectors compared, from 2 to the model's width
window: int = 0  # blocks in a window, odd; 0 for the paper's 11, or about half of a model that is not deep enough
token: int = -1  # token position whose Jacobian and trajectory are taken; -1 is the last
middle: int = 0  # training step of the graph in the middle; 0 for the most coupled between the first and the last
centres: str = ""  # middle blocks of the windows that are followed, from 1, as 6,16,31; empty for three over the depth
others: str = ""  # further models whose training is set beside this one's, separated by commas, as pythia-6.9b
seed: int = 0  # seed of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import emergence
from companion.figures import phases as courses
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables import later, phases
from companion.tables.correlations import runs_beside
from coupling_lib.measures.depth import other_models
from coupling_lib.models import checkpoints

# %% tags=["hide-input"]
_common = ("model", "precision", "memory", "steps", "prompts", "k", "window", "token", "seed")
p = parameters.check_parameters(globals(), declared=(*_common, "middle", "centres", "others"))
command = made_by("emergence", vars(p))

# %% [markdown]
# ## Measurement
#
# The same prompts go through every step, one step in memory at a time. A measurement that is broken off goes on where
# it stopped.

# %%
steps_of = {name: checkpoints.choose_steps(name, steps) for name in [model, *other_models(others, model)]}
middle_step, models = choices.chosen_middle(middle, steps_of[model]), {}
for name, chosen in steps_of.items():
    models[name] = cl.measure_emergence(
        name,
        choices.chosen_prompts(prompts, seed),
        steps=chosen,
        precision=precision,
        memory=memory or None,
        ks=(k,),
        token=token,
        window=window,
        seed=seed,
    )

# %%
measured = models[model]
window_centres = choices.chosen_centres(centres, measured.centre.values, model)

# %% [markdown]
# ## Coupling
#
# Coupling is $1-\tilde m$, one minus the off-diagonal share of $A_{ll'}=U_{l'}^\top J_l V_{l'}$, averaged over all
# pairs of different blocks. The paper follows it in two Pythia models from step 128 on and finds a rise about linear
# in the logarithm of the step, side by side with benchmark accuracy. Whether a model's coupling only rises, or has a
# peak and falls again while the model goes on improving, is what the first figure shows.
#
# The spectra of the Jacobians change in training, and with them the value by chance; so it is computed anew at each
# step. The *traceless part* is a Jacobian without its isotropic part, which scales every direction alike:
# $J_l - (\mathrm{tr} J_l/d)\,I$, with singular vectors of its own.

# %%
show(
    emergence.draw_coupling,
    emergence.take_coupling(measured),
    name="emergence-coupling",
    caption=f"{model}: coupling over training, mean over all pairs of different blocks with 95 % intervals over "
    "prompts, of whole Jacobians and of their traceless part (one line where they coincide). Dashed: by chance. "
    "Dotted: the level of step 0. On the right, where it is known: the model's quality.",
)

# %% [markdown]
# ## Locality
#
# Blocks that are neighbours see nearly the same stream, so coupling between them is the least surprising. Lines that
# fall steeply mean local coupling; flat lines well above chance mean that distant blocks share directions as well.

# %%
show(
    emergence.draw_locality,
    emergence.take_locality(measured),
    name="emergence-locality",
    caption="(a) Coupling against the distance between blocks, one line per step. (b) Neighbouring blocks, and "
    "blocks at least half the depth apart, over training. Bands: 95 % intervals over prompts. Dashed: by chance.",
)

# %% [markdown]
# ## Graphs of blocks
#
# The figure shows three steps: the first, one between (the parameter `middle`, or the most coupled one), and the
# last. Blocks stand on a circle, the first at the top.

# %%
show(
    emergence.draw_graphs,
    emergence.take_graphs(measured, middle=middle_step),
    name="emergence-graphs",
    caption=f"{model}: blocks joined by their coupling beyond chance, mean of both directions and over prompts; a "
    "panel per step of training.",
)

# %% [markdown]
# ## Straight lines and exponential growth
#
# The line-shape score of a trajectory is its number of steps over the length of the sum of its unit steps: 1 for a
# straight line, about $\sqrt L$ for unrelated steps. Expodistance is the squared coefficient of variation of the
# growth of the norm, 0 for exact exponential growth; it is large where the norm hardly grows at all. The paper
# reports that both fall as Pythia is trained, and that windows at different depths differ.
#
# A window of $w$ blocks has $w$ steps between $w+1$ states, and its score has $w$ as numerator, so that 1 stays the
# value of a straight line.

# %%
show(
    emergence.draw_scores,
    emergence.take_scores(measured, window_centres),
    name="emergence-scores",
    caption="Line-shape score and expodistance over training: medians over prompts with quartiles. Above: all blocks, "
    f"from the embedding to the last block's output. Below: windows of {measured.window} blocks"
    f"{'' if window_centres else ', the shallowest, the middle and the deepest'} (the paper's windows have 11 blocks).",
)

# %%
show(
    emergence.draw_profiles,
    emergence.take_profiles(measured),
    name="emergence-profiles",
    caption="Norm of the stream, line-shape score and expodistance against depth, one line per step: medians over "
    f"prompts. The scores are of windows of {measured.window} blocks and stand at the middle one.",
)

# %% [markdown]
# ## Beside other models
#
# The parameter `others` names further models with several steps. Their coupling and their scores over training stand in
# one figure with this model's, ordered by size; without `others` there is nothing to draw.

# %%
show(
    emergence.draw_models,
    emergence.take_models(models) if len(models) > 1 else None,
    name="emergence-models",
    caption="Coupling (mean over all pairs of different blocks, with 95 % intervals over prompts), line-shape "
    "score and expodistance of all blocks (medians with quartiles) over training. Models in order of size.",
)

# %% [markdown]
# ## Why it peaks
#
# The Jacobians of one block, one for each prompt, have a mean and fluctuate around it. If the mean holds nearly all
# of their squared norm, the block does nearly the same to every prompt. Another explanation is that one direction of
# each block outweighs all others: then the logarithm of $s_1/s_2$ is large. We measured both over the training of six
# seeds of one small model, whatever `model` is, and of nano-neox (`data/phases.csv`).

# %%
table = phases.phases()
show(
    courses.draw_courses,
    courses.take_courses(table),
    name="emergence-phases",
    caption="Over training: coupling; the share of the energy of a block's Jacobians that is the same on all prompts; "
    "and the logarithm of the ratio of the two largest singular values. The last two are means over blocks. Thin: six "
    "seeds of one small model (width 48, 6 blocks); thick: their mean; dashed: nano-neox.",
    provenance=f"data/phases.csv · {len(table)} checkpoints · {table['versions'].iloc[0]}",
)

# %% [markdown]
# ## Long after the peak
#
# Does coupling rise again after its fall, if training goes on? Two models as small as those six were trained on 200 M
# tokens each, some 800 for every parameter (`data/later.csv`).

# %%
table = later.later()
show(
    courses.draw_long,
    courses.take_long(table),
    name="emergence-later",
    caption="Two small models (width 48, 6 blocks) over 200 M training tokens. Coupling of different blocks (dashed: "
    "traceless part); of neighbours (dashed: blocks at least half the depth apart); the share of the energy of a "
    "block's Jacobians that is the same on all prompts; loss; and effective rank, the exponential of the entropy of "
    "singular values.",
    provenance=f"data/later.csv · {len(table)} checkpoints · {table['versions'].iloc[0]}",
)

# %% [markdown]
# ## In numbers
#
# The table gives coupling with its 95 % interval, its value by chance, and the medians of the two scores.

# %% tags=["nbval-check-output"]
summary = emergence.take_summary(measured)
print(summary.to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
quoted = emergence.numbers_of(measured, runs_beside(model, measured.variant, k))
remember("emergence", quoted | phases.numbers_of(phases.phases()) | later.numbers_of(table))
