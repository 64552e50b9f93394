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
# # Vision transformers
#
# A vision transformer cuts an image into patches and treats them as a language model treats tokens: the same blocks,
# the same residual stream, the same Jacobians. Two things differ. Every token attends to every other, in both
# directions; and the models here read their answer off one extra token, the *class token*, at position 0.
#
# The first half of this notebook looks at a whole grid of models, trained alike but for two settings: weight decay,
# and *stochastic depth*, which drops residual branches at random while training. The second half looks at one model.

# %% tags=["parameters", "hide-input"]
model: str = "nano-vit"  # alias of data/models.csv, Hugging Face id, or a local folder of a vision transformer
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
revision: str = ""  # branch, tag, commit or training step such as step0; empty for the newest
table: str = ""  # a grid of your own, as `python -m companion.training vit grid` writes it; empty for the book's
pictures: str = "digits"  # digits, cifar10, a local copy of CIFAR-10, a folder of pictures, or noise
images: int = 8  # number of images averaged
k: int = 10  # number of singular vectors compared, from 2 to the model's width
blocks: str = ""  # blocks drawn as matrices, from 1, such as 3-10; empty for up to eight in the middle
token: int = 0  # token position whose Jacobian is taken; 0 is the class token, -1 the last patch
rate: float = 0.3  # rate of stochastic depth with which its effect on a measurement is shown
draws: int = 2  # how often branches are drawn for each image to show it
seed: int = 0  # seed of the untrained weights, of the choice of images and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import depth, style, trajectories, vision, vision_model
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.tables import photographs, vit_grid
from companion.tables.arrays import side_by_side
from companion.tables.generalization import paper_figures
from companion.training.drop_path import measure_drop_path
from coupling_lib.inputs.images import patch_box
from coupling_lib.measures.vision import measure_network

# %% tags=["hide-input"]
p = parameters.check_parameters(
    globals(),
    declared=(
        *("model", "precision", "revision", "table", "pictures", "images", "k", "blocks", "token", "rate", "draws"),
        "seed",
    ),
)
command = made_by("vision", vars(p))

# %% [markdown]
# ## A grid of trained models
#
# The paper trains 64 vision transformers on CIFAR-10: eight weight decays, eight rates of stochastic depth. The same
# grid is trained here on scikit-learn's handwritten digits, a data set that fits on one processor core, by `python -m
# companion.training vit grid digits`; so the models are far smaller and the images far easier, and what is
# compared with the paper is the direction of an effect, not its size. Every model is measured with stochastic depth
# switched off. Further seeds repeat one row of the grid. The same command trains the grid at the paper's size on a
# copy of CIFAR-10; the parameter `table` names what it wrote, to be drawn in place of the book's grid.
#
# All figures show *coupling*, $1-\tilde m$, averaged over pairs of different blocks and over held-out images; $\tilde m
# = \lVert A - \mathrm{Diag}\,A\rVert_F / \lVert A\rVert_F$ is the off-diagonal share of the coupling matrix. The table
# `data/vit_grid.csv` holds every other variant as well.

# %%
grid = vit_grid.read_grid(table)
of_grid = vit_grid.nearest_reading(grid, token, k, "normalized_miscoupling")
paper = vit_grid.stated_r_squared(paper_figures())
null_error = style.one_digit(vit_grid.null_error(of_grid))
known = "as the grid's training recorded them" if table else f"known to within {null_error}"
origin_of_grid = vit_grid.grid_provenance(grid, file=table)

# %% [markdown]
# ### Does coupling correlate with accuracy?
#
# The paper finds that models with more coupling classify better, and the more clearly the more stochastic depth they
# were trained with. Each line is fitted to the eight weight decays of one rate: few points, so that the intervals of
# $R^2$ are wide, and an $R^2$ whose interval begins near 0 says nothing. Look also at the sign of the slope, and at the
# scales: models of one seed start from the same weights and see the same batches, so that at one rate they differ by
# weight decay alone. In a short training that can be a matter of a few held-out images, in which accuracy is counted.

# %%
show(
    vision.draw_accuracy,
    vision.take_accuracy(grid, of_grid, paper, vit_grid.NAMED_RATES),
    name="vision-accuracy",
    caption="Test accuracy against coupling of trained ViTs that differ in weight decay, for four rates of stochastic "
    "depth, with least-squares lines; in brackets the 95 % interval of R² over models, and the R² that the "
    "paper states for CIFAR-10. Bars: 95 % intervals over images.",
    provenance=origin_of_grid,
)

# %% [markdown]
# The next figure shows all eight rates one by one.

# %%
show(
    vision.draw_accuracy_rates,
    vision.take_accuracy(grid, of_grid),
    name="vision-accuracy-rates",
    caption="Test accuracy against coupling, a panel per rate of stochastic depth and a dot per weight decay; R² with "
    "its 95 % interval over models.",
    provenance=origin_of_grid,
)

# %% [markdown]
# ### Does stochastic depth raise coupling?
#
# With it, a block cannot rely on the block before it being there; one way to live with that is that neighbouring
# blocks do similar things. The paper reports coupling that grows with the rate. The dots of several seeds show how
# much of a difference another initialisation makes. The band shows how much another choice of images makes.

# %%
show(
    vision.draw_rates,
    vision.take_rates(grid, of_grid),
    name="vision-rate",
    caption="Coupling against the rate of stochastic depth at one weight decay, for the class token and the last "
    "patch. Line: mean over seeds (small dots); band: 95 % interval over images. Dashed: by chance; dotted: untrained.",
    provenance=origin_of_grid,
)

# %%
show(
    vision.draw_decays,
    vision.take_decays(grid, of_grid),
    name="vision-rate-decays",
    caption="Coupling against the rate of stochastic depth, a panel per weight decay. Bands: 95 % intervals "
    f"over images. By chance: {known}.",
    provenance=origin_of_grid,
)

# %% [markdown]
# The first table gives $R^2$ of accuracy against coupling at each rate. The second gives, for each weight decay,
# the rank correlation of coupling and of accuracy with the rate.

# %% tags=["nbval-check-output"]
fits = vit_grid.fits_by_rate(grid, of_grid, paper)
trends = vit_grid.trend_table(grid, of_grid)
columns = ["drop_path", "models", "slope", "r_squared", "low", "high", "paper"]
print(fits[columns].to_string(index=False, float_format="%.2f", na_rep=""))
print(trends.to_string(index=False, float_format="{:.3g}".format))

# %% [markdown]
# ### The same grid on photographs
#
# Digits are so easy that models of one rate hardly differ in accuracy. On photographs they do. Here is a model for each
# cell of the grid, trained on CIFAR-10 at 16 by 16 pixels by `python -m companion.training vit grid cifar10-small`. No
# two of these models share a seed, so that each is a trial of its own. No pictures are needed to draw them: the table
# `data/cifar_grid.csv` holds what was measured.

# %%
on_photographs = photographs.cells()
show(
    vision.draw_photographs,
    vision.take_photographs(on_photographs),
    name="vision-photographs",
    caption="Test accuracy against coupling at the class token of ViTs on photographs, a dot for each model: as "
    "measured, and with the mean of each rate of stochastic depth taken out of both. Lines: least squares.",
    provenance=vit_grid.grid_provenance(on_photographs, file="data/cifar_grid.csv"),
)

# %% [markdown]
# Pairs ask about the rate alone: their two models share first weights, order of pictures and weight decay, and one was
# trained without stochastic depth, the other with a rate of 0.5. `python -m companion.training vit pairs cifar10-small`
# trains them.

# %%
pairs = photographs.pairs()
show(
    vision.draw_pairs,
    vision.take_pairs(pairs),
    name="vision-pairs",
    caption="Change by stochastic depth at a rate of 0.5 within pairs of ViTs on photographs: coupling at the class "
    "token, of whole Jacobians and of their traceless part, and test accuracy. Dots: pairs; bars: 95 % intervals of "
    "the mean.",
    provenance=vit_grid.grid_provenance(pairs, file="data/cifar_pairs.csv"),
)

# %% [markdown]
# ## One model
#
# The model is measured on the chosen images, trained and untrained, both in evaluation mode. A vision model that was
# trained on other images than the chosen ones still answers to them; the names of the images are kept with the numbers.

# %%
loaded = cl.load_model(model, precision=precision, revision=revision or None)
drawn = choices.chosen_blocks(loaded, blocks, k)
chosen = cl.load_images(pictures, loaded, images, seed)
pixels = [picture.pixels for picture in chosen]
patch = patch_box(loaded, token, chosen[0])
trained = measure_network(loaded, pixels, k, token)
dropped = cl.sweep(measure_drop_path, loaded, pixels, rate=rate, draws=draws, k=k, token=token, seed=seed)
del loaded
loaded = cl.load_model(model, precision=precision, revision=revision or None, untrained=True, seed=seed)
untrained = measure_network(loaded, pixels, k, token)
del loaded

# %%
depths, relations, paths = (
    side_by_side(untrained=untrained[part], trained=trained[part]) for part in ("depth", "relations", "path")
)
null = cl.null_of(trained["depth"], "normalized_miscoupling", seed=seed)
nulls = cl.null_of(trained["relations"], "normalized_miscoupling", seed=seed)

# %% [markdown]
# ### The matrices, beside the image
#
# As for language models: each small square is one $|A_{ll'}|$, of the Jacobian of block $l$ and the singular
# vectors of block $l'$, both at one token of this image. A square with a clean diagonal, off the diagonal of the
# grid, shows coupling.

# %%
show(
    vision_model.draw_image,
    vision_model.take_image(depths, chosen[0].shown, patch, drawn),
    name="vision-matrices",
    caption=f"Coupling matrices of pairs of blocks for the image on the left ({chosen[0].name}), relative to the "
    f"largest singular value of the row's Jacobian; token position {token}"
    f"{' (framed)' if patch else ''}. One scale, ending at the largest entry between different blocks.",
)

# %%
show(
    depth.draw_map,
    depth.take_map(depths, null=null),
    name="vision-mismatch",
    caption=f"Coupling of every pair of blocks at token position {token}, mean over {images} "
    "images. The more a square stands out from the page, the more coupling; a block with itself (grey) is "
    "coupled by construction.",
)

# %% [markdown]
# ### At one token, and between tokens
#
# $J_{t_1t_2}$ says how token $t_2$ answers to a change at token $t_1$. In a model that attends in both directions
# it exists for both orders, and the two are different matrices: the class token reads the patches, and is read by
# them. No skip path runs between different tokens, so that nothing is subtracted there. *Patch* and *a* are one
# central patch, *b* is its diagonal neighbour.

# %%
show(
    vision_model.draw_relations,
    vision_model.take_relations(relations, nulls=nulls),
    name="vision-relations",
    caption="Coupling between blocks at single tokens and from one token to another, both orders. One dot per image, "
    "mean over pairs of different blocks; bars are 95 % intervals of the mean over images. Dashed: by chance, with "
    "the same singular values.",
)

# %% [markdown]
# ### Stochastic depth belongs off
#
# The code released with the paper runs a vision transformer before it is put into evaluation mode. If the caller left
# it in training mode, branches were dropped while it was measured: the Jacobians are then those of a random
# sub-network, with the surviving branches enlarged. This is what it does to the number.

# %%
show(
    vision_model.draw_drop_path,
    vision_model.take_drop_path(dropped, null),
    name="vision-drop-path",
    caption="Coupling of the trained model with stochastic depth off, as everywhere else, and left on. One dot per "
    "image, or per image and draw; bars are 95 % intervals over images.",
)

# %% [markdown]
# ### Trajectories
#
# The states of one token, from what enters the first block to what leaves the last, form a path. Its line-shape score
# is 1 where it is straight and about $\sqrt L$ where steps are unrelated; its expodistance is 0 where the norm grows
# exponentially.

# %%
show(
    trajectories.draw_scores,
    trajectories.take_scores(paths),
    name="vision-trajectories",
    caption=f"Line-shape score, expodistance and equidistance of the path of token {token}, one dot per image; bar "
    "and tick are quartiles and median.",
)

# %%
show(
    trajectories.draw_profiles,
    trajectories.take_profiles(paths),
    name="vision-profiles",
    caption=f"Norm, step length and line-shape score in windows against depth, token {token}: medians with "
    "quartiles over images.",
)

# %% [markdown]
# ## In numbers
#
# The table gives the mean coupling over all pairs of different blocks with its 95 % interval over images.

# %% tags=["nbval-check-output"]
summary = vision_model.take_summary(depths, null=null)
print(summary.to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
of_model = vision_model.numbers_of(depths, relations, dropped, null, nulls)
of_table = {} if table else vit_grid.numbers_of(grid, of_grid, model) | photographs.numbers_of(on_photographs, pairs)
remember("vision", of_table | of_model)
