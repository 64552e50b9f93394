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
# # What no coupling looks like
#
# A number for coupling means little without its value by chance. Some readings of coupling depend only on the width of
# the model and on the number of singular vectors, whatever the model has learned. This notebook gives the value of
# every reading without coupling, in closed form and by simulation; compares a model with chance, with altered copies of
# itself and with its untrained state; and makes the test that decides what the horizontal axis of the paper's
# best-known figure shows.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 12  # number of embedded prompts; or a set's name or file, as gsm8k:50
k: int = 10  # number of singular vectors compared, from 2 to the model's width
token: int = -1  # token position whose Jacobian is taken; -1 is the last
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import nulls
from companion.figures.show import made_by, remember, show
from companion.notebook import parameters
from companion.notebook.choices import check_k, chosen_prompts
from companion.notebook.heads import headed
from companion.tables import generalization
from companion.tables.arrays import side_by_side
from coupling_lib.measures.nulls import ladder, measure_decisive, measure_nulls, null_by_spectrum, null_curves

p = parameters.check_parameters(
    globals(), declared=("model", "precision", "memory", "revision", "prompts", "k", "token", "seed")
)
command = made_by("nulls", vars(p))

# %% [markdown]
# ## Width, number of vectors, spectrum
#
# Two blocks without coupling keep their singular values; their singular vectors are drawn at random. The mean square
# of every distance has a closed form (derived in `coupling_lib.metrics.nulls`). For a flat spectrum and large $d$ it
# becomes
#
# $$m_\mathrm{norm} \approx \sqrt{1 + K/d - 1.6/\sqrt d}, \qquad
#   m_\mathrm{trace} \approx m_\mathrm{norm} / \sqrt K, \qquad \tilde m \approx \sqrt{1 - 1/K}.$$
#
# The first two are the exact root mean square as $d$ grows; the third is the exact root mean square for every spectrum
# and every width. A spectrum that decays moves $m_\mathrm{trace}$ most: the sum of the singular values is then less
# than $\sqrt K$ times their 2-norm. Look at the lower right panel: with $K$ a tenth of the width, $m_\mathrm{trace}$
# falls as models grow wider, and 1 minus it rises, although nothing is coupled.

# %%
curves = null_curves(seed=seed)
show(
    nulls.draw_curves,
    nulls.take_curves(curves),
    name="nulls-curves",
    caption="Three readings without any coupling against the width, for three decays of the spectrum. Lines: closed "
    "form (root mean square). Dots: simulation, with its standard error. The table under the figure has all readings.",
    provenance=f"simulation, seed {seed} · {curves.versions}",
)

# %% [markdown]
# A measured value is a mean over pairs of blocks. So it is compared with the *mean* by chance, which lies a little
# below the root mean square. Random draws supply only this difference, which keeps the error small; one reading has no
# closed form, and its value by chance is the mean of plain draws. For the normalised mis-coupling $K$ decides. Width
# and spectrum hardly move the coupling by chance, as this table shows: from the least width there is, $d = K$, and from
# a flat spectrum to a Jacobian of rank one.

# %%
by_spectrum = null_by_spectrum(k, seed=seed)
print(by_spectrum.to_string(index=False, float_format="%.5f"))

# %% [markdown]
# ## A model against itself
#
# For every pair of different blocks, the Jacobian of one stays and the singular vectors of the other are replaced.
# Each of three alterations takes one kind of agreement away:
#
# - *rotated*: by random rotations, separately on the left and on the right. Only orthonormality is left. This is one
#   draw by chance. Coupling below is relative to the value by chance: 0 there, and 1 at perfect coupling.
# - *permuted*: the coordinates of the residual stream are shuffled, in the same way on both sides. A model whose
#   vectors all sit on a few large coordinates would lose its coupling here, but would keep their shape.
# - *unpaired*: the vectors stay, but each right vector gets the left vector of another. The subspaces are still
#   shared. What is lost here is the matching of single directions.
#
# The untrained model is the fourth comparison.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
check_k(loaded, k)
texts = cl.inputs_for(loaded, chosen_prompts(prompts, seed), seed=seed)
settings = {"ks": ladder(k, loaded.d_model), "token": token, "seed": seed}
trained = cl.sweep(measure_nulls, loaded, texts, **settings)
trained_decisive = cl.sweep(measure_decisive, loaded, texts[:6], token=token)

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.sweep(measure_nulls, loaded, texts, **settings)
untrained_decisive = cl.sweep(measure_decisive, loaded, texts[:6], token=token)
del loaded

# %%
networks = side_by_side(untrained=untrained, trained=trained)
show(
    nulls.draw_surrogates,
    nulls.take_surrogates(networks, k),
    name="nulls-surrogates",
    caption="Every reading, as a share of the way from chance (0) to perfect coupling (1), mean over pairs of "
    "different blocks and over prompts, with 95 % intervals over prompts; the data give each value by chance with its "
    "standard error. Hollow: altered copies of the model. Negative: further from perfect coupling than by chance.",
)

# %% [markdown]
# The raw mis-coupling $m$ is not divided by anything. A trained model's Jacobians are large where they agree as well as
# where they do not, so $m$ can be further from 0 than by chance although the directions agree: read it with its norm,
# or not at all.
#
# ## What needs no shared direction
#
# Vectors that point anywhere are a lenient comparison. They lose how the left and right singular vectors of one block
# are aligned, and alignment alone makes coupling matrices more diagonal: two independent symmetric matrices without a
# trace couple at about $1 - \sqrt{1 - 2/(K+1)}$, .095 at $K = 10$, and not at .052. A stricter comparison turns a block
# as a whole, $J_{l'} \to Q J_{l'} Q^\top$ with one uniformly random rotation $Q$. It keeps the alignment of left and
# right, the trace and the spectrum; where the directions lie in the stream is lost.
#
# One thing it keeps is the *isotropic part* $t_l I$ with $t_l = \mathrm{tr} J_l / d$, what the block does to every
# direction alike. So we take it out of every Jacobian, and measure the *traceless part* $J_l - t_l I$ like the whole,
# with its own vectors and its own two values by chance.
#
# Coupling beyond both values need not be learned. Three controls stand beside it:
#
# - *coordinates permuted but the 5 largest*: the five coordinates in which the states are largest stay in place. What
#   this keeps beyond *permuted* is due to a few outlier coordinates that all blocks see.
# - *of another prompt*: the vectors that the other block has at another prompt. What remains belongs to the network and
#   not to the prompt.
# - *directions of the states*: the principal directions of the prompt's own states, on both sides, in place of any
#   block's vectors. What they reach needs no singular vectors: the stream imposes it on every block.

# %%
parts = nulls.take_parts(networks, k)
show(
    nulls.draw_parts,
    parts,
    name="nulls-parts",
    caption=f"{model}: coupling of whole Jacobians and of their traceless part with the other block's own vectors "
    "(filled) and with others (hollow); mean over pairs of different blocks, with 95 % intervals over prompts. "
    "Conjugated: the stricter value by chance. Other rows: controls, explained in the text.",
)

# %% [markdown]
# The same for every number of vectors, beside both values by chance:

# %% tags=["hide-input"]
print(nulls.parts_table(networks).round(3).to_string())

# %% [markdown]
# ## How many vectors
#
# A reading that found the same at every $K$ would give flat lines here.

# %%
show(
    nulls.draw_across_k,
    nulls.take_across_k(networks),
    name="nulls-across-k",
    caption="Coupling relative to chance against the number of singular vectors, mean over pairs of different "
    "blocks and over prompts, with 95 % intervals over prompts.",
)

# %% [markdown]
# ## The decisive test
#
# The final version of the paper's figure 1a plots coupling of 28 models against their benchmark score. How its
# coupling was normalised is not said. The values, read off the picture, follow $1 - 1/\sqrt{\lfloor 0.1\,d\rfloor}$
# closely: what 1 - `released_trace` is with $K$ a tenth of the width, a flat spectrum, and no coupling. That is an
# inference from a picture. Measuring the same models decides it, and is one command:
#
#     python workflow/decisive.py gpt2 gpt2-medium gpt2-large qwen1.5-0.5b pythia-1.4b
#
# It prints the lines below for each of them (here: this model, up to six prompts), with the digitised value beside. If
# the trained and untrained models lie at chance for their own spectra, and the digitised values lie there too, the axis
# shows the width of the models.

# %%
points = generalization.figure_1a()
measured = {model: side_by_side(untrained=untrained_decisive, trained=trained_decisive)}
show(
    nulls.draw_figure_1a,
    nulls.take_figure_1a(measured, points),
    name="nulls-figure-1a",
    caption="Crosses: the horizontal axis of the paper's figure 1a (error of reading 0.0003), against width. "
    f"Line: no coupling and a flat spectrum, 1 - 1 / √⌊0.1 d⌋. Dots: {model}, trained and untrained, means over pairs "
    f"of different blocks and {trained_decisive.sizes['prompt']} prompts; bar: by chance.",
)

# %%
digitised = points.set_index("model")["coupling"].to_dict()
headed(nulls.take_decisive(measured, digitised)).round(4)

# %%
headed(nulls.take_missing(generalization.DECISIVE_MODELS, measured, digitised))

# %% [markdown]
# ## In numbers
#
# The table gives coupling relative to chance, as a mean over pairs of different blocks and over prompts. Claims are
# judged by coupling beyond the larger of the two values by chance: how large it is, how much training adds, by how much
# neighbours lead, and how much is lost when single vectors lose their partners.

# %% tags=["nbval-check-output"]
summary = nulls.take_summary(networks, k)
print((summary.round(2) + 0.0).to_string(float_format="%.2f"))

# %% tags=["hide-input"]
print(nulls.stricter_table(networks, k).to_string(index=False, float_format="%.4f"))

# %% tags=["hide-input"]
remember("nulls", nulls.numbers_of(curves, by_spectrum, networks, measured[model], k))
