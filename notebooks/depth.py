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
# # Coupling across depth
#
# A transformer block adds something to the residual stream. To first order, a matrix says how that addition changes
# when the stream changes at one token: the block's *residual Jacobian* $J_l$. Its singular vectors are the directions
# the block listens to ($V_l$) and writes along ($U_l$). Two blocks are *coupled* when they share these directions. This
# notebook asks of every pair of blocks of one model: do the singular vectors of block $l'$ diagonalise the Jacobian of
# block $l$? It compares the answer with the model before training, and with chance.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
k: int = 10  # number of singular vectors compared, from 2 to the model's width
blocks: str = ""  # blocks drawn as matrices, from 1, such as 3-10; empty for up to eight in the middle
token: int = -1  # token position whose Jacobian is taken; -1 is the last
others: str = "nano-llama"  # further models to set beside this one, separated by commas; may be empty
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import depth, schematic
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.notebook.shipped import shipped, shipped_networks
from companion.tables.arrays import side_by_side
from coupling_lib.datasets.parts import with_shared_part
from coupling_lib.measures.depth import measure_models, other_models
from coupling_lib.measures.nulls import measure_nulls
from coupling_lib.measures.random_bases import null_spreads

p = parameters.check_parameters(globals(), declared=(*parameters.COMMON, "others"))
command = made_by("depth", vars(p))

# %% [markdown]
# ## Measurement
#
# For every prompt, one pass through the model records what each block received. The Jacobian of every block at the
# chosen token follows from it exactly, by automatic differentiation, and so do its strongest $K$ singular triplets;
# each triplet carries a residual that is checked. For every pair of blocks this gives the coupling matrix
#
# $$A_{ll'} = U_{l',K}^\top\, J_l\, V_{l',K}.$$

# %% tags=["hide-input"]
show(
    schematic.draw_construction,
    schematic.take_construction(),
    name="depth-construction",
    caption="Above: the Jacobian of a block is the first-order response of its output to the stream. We multiply the "
    "Jacobian of another block by this block's singular vectors on both sides; the result is diagonal if the two share "
    "them. Below: the pairs of Jacobians that we compare; the chapter Depth is about the first. The small matrices are "
    "examples, drawn without signs.",
)

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
drawn = choices.chosen_blocks(loaded, blocks, k)
texts = cl.inputs_for(loaded, choices.chosen_prompts(prompts, seed), seed=seed)
shown = None if blocks else depth.DRAWN  # what the figures below show; of chosen blocks all there is
trained = cl.sweep(cl.measure_depth, loaded, texts, ks=(k,), token=token, variables=shown)
turned = shipped(measure_nulls, loaded, texts, ks=(k // 2, k, 2 * k), token=token, seed=seed)

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.sweep(cl.measure_depth, loaded, texts, ks=(k,), token=token, variables=shown)
del loaded

# %% [markdown]
# Papers and code measure the distance from perfect coupling in several ways. All figures below show one of them, the
# off-diagonal share of $A$,
#
# $$\tilde m = \lVert A - \mathrm{Diag}\,A\rVert_F \,/\, \lVert A\rVert_F ,$$
#
# which is 0 when the blocks share all $K$ directions, and about $\sqrt{1-1/K}$ when they share none. *Coupling* is
# $1-\tilde m$. Its value by chance is that of directions drawn at random, with the same singular values; every figure
# shows it with its standard error. A stricter chance, *conjugated*, turns each block as a whole,
# $J_{l'} \to Q J_{l'} Q^\top$, and so keeps the angles between its own left and right vectors. [Nulls](nulls.ipynb)
# measures it for any model; figures here show it where it ships with the project.
#
# Coupling has two parts. A block may scale every direction alike: its *isotropic part* $t_l I$ with
# $t_l = \mathrm{tr} J_l/d$. That counts as coupling, and needs no shared direction. Beside each whole Jacobian stands
# its *traceless part*, $J_l - t_l I$, with singular vectors of its own.

# %%
before_and_after = side_by_side(untrained=untrained, trained=trained)
networks = with_shared_part(before_and_after)
null = cl.null_of(trained, "normalized_miscoupling", seed=seed)

# %% [markdown]
# ## The matrices
#
# Each small square is one $|A_{ll'}|$: the row says whose Jacobian, the column whose singular vectors. Where row and
# column are the same block the square is diagonal by construction. Everywhere else a diagonal has to be earned: a
# bare square with a clean diagonal means that two different blocks work along the same directions.

# %%
show(
    depth.draw_matrices,
    depth.take_matrices(networks, drawn),
    name="depth-matrices",
    caption="Coupling matrices of pairs of blocks at one token of one prompt, relative to the largest singular value "
    "of the row's Jacobian: before and after training, and of the traceless part after it. One scale, ending at the "
    "largest entry between different blocks.",
)

# %% [markdown]
# ## All pairs
#
# Each pair is one number, averaged over prompts. The darker (on dark pages: the brighter) a square, the more the two
# blocks are coupled; the mark on the colour bar is the value by chance.

# %%
show(
    depth.draw_map,
    depth.take_map(networks, null=null),
    name="depth-mismatch",
    caption=f"{model}: coupling of every pair of blocks, mean over prompts: whole Jacobians before and after training, "
    "and the traceless part after it. A block with itself (grey) is coupled by construction.",
)

# %% [markdown]
# ## A graph of blocks
#
# Blocks stand on a circle, the first at the top. A line joins two blocks as strongly as they are coupled, in the mean
# of both directions: the Jacobian of one against the vectors of the other, and the reverse.

# %%
show(
    depth.draw_graph,
    depth.take_graph(networks, null=null),
    name="depth-graph",
    caption="Blocks joined by their coupling: of whole Jacobians before and after training, and of the traceless part "
    "after training. Width and opacity of a line grow in proportion to it, on one scale.",
)

# %% [markdown]
# ## Across prompts, and with distance
#
# A single prompt could mislead. On the left each dot is one prompt, averaged over all pairs of different blocks. On
# the right the pairs are sorted by how many blocks apart they are, with a 95 % interval over prompts.

# %%
show(
    depth.draw_distribution,
    depth.take_distribution(networks, null=null, nulls=turned),
    name="depth-distribution",
    caption=f"{model}: (a) coupling per prompt, with median and quartiles; (b) mean coupling against the distance "
    "between blocks, with 95 % intervals over prompts. Traceless part: after training. Dashed: by chance. Dotted, on "
    "the left: by the stricter chance (conjugated).",
)

# %% [markdown]
# ## Beside other models
#
# Is this a property of one model, or of trained transformers? The figure measures further models with the same
# prompts, the same token and the same $K$, on one colour scale. Below, it shows coupling against distance in each.

# %%
names, texts = other_models(others, besides=model), choices.chosen_prompts(prompts, seed)
beside = {model: before_and_after}
for name in names:  # what ships of a model is read without its weights; of chosen blocks all is measured
    found = {} if blocks else shipped_networks(cl.measure_depth, name, texts, precision, seed, ks=(k,), token=token)
    found = found or measure_models([name], texts, (k,), token, precision, seed, memory=memory or None)[name]
    beside[name] = side_by_side(**found)
further = len(beside) > 1
show(
    depth.draw_models,
    depth.take_models(beside, null=null),
    name="depth-models",
    caption="Above: coupling of every pair of blocks in trained models, mean over prompts. Below: mean "
    "coupling against the distance between blocks, with 95 % intervals over prompts; dotted: untrained.",
)

# %% [markdown]
# Where the parameter `blocks` names blocks, the matrices of these stand beside each other as well, of all models after
# training, ordered by size.

# %%
show(
    depth.draw_matrices,
    depth.take_matrices_of(beside, drawn) if blocks and further else None,
    name="depth-models-matrices",
    caption="Coupling matrices of the same blocks in trained models, at one token of one prompt, each relative "
    "to the largest singular value of the row's Jacobian, on one scale. Blank: blocks that a model lacks.",
)

# %% [markdown]
# ## In numbers
#
# The table gives the mean coupling over all pairs of different blocks, its 95 % interval over prompts, and the mean
# over neighbouring blocks alone. The traceless part is of the trained network.

# %% tags=["nbval-check-output"]
summary = depth.take_summary(networks, null=null)
print(summary.to_string(float_format="%.2f", na_rep=""))

# %% tags=["hide-input"]
spreads = null_spreads(k, trained.sizes["block_1"])
remember("depth", depth.numbers_of(before_and_after, spreads, null=null))
