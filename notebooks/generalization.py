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
# # Does coupling predict how good a model is?
#
# The paper's headline is a correlation: over 28 language models, coupling explains 80 per cent of the variance of
# a mean benchmark score. A correlation over a few models invites two questions. Could a third quantity be behind both?
# And does it come back on models that were made to tell the candidates apart? This notebook takes up the first
# with the paper's own numbers, read off its figure, and the second with a suite of small models trained for it, which
# differ in width, depth, tokens, seed, learning rate and regularisation. It reads tables (`data/paper_figures.csv`,
# `data/suite.csv`, `data/models.csv`, `data/decoder_scores.csv`) and what was measured; a model that has scores and no
# measurement is measured here.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # model named in the figures, if it is among their points

# %% tags=["hide-input"]
from companion.figures import decoder_scores as score_figures
from companion.figures import generalization as figures
from companion.figures import generalization_numbers, paper_models
from companion.figures import regularised as experiment
from companion.figures import rivals as rival_figures
from companion.figures import width as width_figures
from companion.figures.show import made_by, remember, show
from companion.notebook import decoders, parameters
from companion.notebook.heads import headed
from companion.tables import correlations, figure_1a, generalization, quality, regularised, rivals, width

p = parameters.check_parameters(globals(), declared=("model",))
command = made_by("generalization", vars(p))

# %% [markdown]
# ## The paper's figure, and the width of its models
#
# The final version of figure 1a plots coupling of 28 models. Its values were read off the picture (error 0.0003 in
# coupling, 0.1 in score; two markers lie behind labels). The paper does not say how they were normalised. They follow
# $1 - 1/\sqrt{\lfloor 0.1\,d \rfloor}$ closely, a curve that knows nothing but the width $d$ of a model. One
# normalisation of the released code gives that curve with $K = 0.1\,d$, a flat spectrum and *no coupling at all* (see
# the notebook on nulls). That the figure shows this normalisation is an inference.
#
# Width explains most of the horizontal axis, and most of the score. So the question is what is left when width is
# taken out of *both*. The axis follows its own curve, so that this curve is what has to be taken out. The right panel
# shows what is left: there, too, models with more coupling score higher.

# %%
points = generalization.figure_1a()
paper = figure_1a.statistics(points)
show(
    figures.draw_paper,
    figures.take_paper(points),
    name="generalization-paper",
    caption=f"Score against coupling in the paper's figure 1a, {len(points)} models, digitised. (a) As plotted. "
    "(b) The curve of width in place of coupling. (c) Residuals of both, each regressed on that curve. Lines: least "
    "squares.",
    provenance=f"data/paper_figures.csv (digitised), data/models.csv (widths) · {len(points)} models",
)

# %% [markdown]
# The correlation beyond width. The first five lines take width out in five forms, of which no argument prefers another
# to the first. The others differ in what is held fixed besides, among which models, and which models count as one
# family in the error. `p` is over models, `p_families` over families; `least` and `most` are the range of r when any
# one family is left out.

# %%
partial = figure_1a.partial_table(points)
headed(partial).round(3)

# %% [markdown]
# The line of the left panel once more, fitted to some of the models at a time. The paper's table 4 asks the same:
# does the correlation hold among base models, and among the better ones? Its numbers are lost in our source.

# %% tags=["nbval-check-output"]
print(figure_1a.subset_table(points).to_string(float_format="%.2g"))

# %% [markdown]
# The next figure plots both axes against the sizes of the same models. The paper reports that coupling correlates more
# closely with the score than depth, width and parameters do. Training tokens are those that the makers of a model
# state.

# %%
show(
    paper_models.draw_sizes,
    paper_models.take_sizes(points),
    name="generalization-paper-sizes",
    caption="Score and digitised coupling of the models of the paper's figure 1a against their size, depth, width and "
    "training tokens, as far as these are known. r: correlation with the logarithm.",
    provenance=f"data/paper_figures.csv (digitised), data/models.csv (sizes) · {len(points)} models",
)

# %% [markdown]
# **A trap.** $(1-c)\sqrt{0.1\,d}$ divides the width out of coupling. Set against the *raw* score it explains nothing.
# That is no evidence: the quantity itself rises with $\log d$, and so does the score, and the two hide the relation
# between them (suppression). With the score cleared as well, it appears over models: the line `mismatch` above.
#
# How much better than its rivals does coupling explain the score? The table gives the differences of R², with
# intervals over families:

# %%
gains = figure_1a.gains(points)
{name: [round(part, 3) for part in gain[:3]] for name, gain in gains.items()}

# %%
{name: round(value, 4) for name, value in paper.items()}

# %% [markdown]
# ## Public decoders
#
# Coupling across depth of public decoders, and of two small models trained for this book, against how well they predict
# text and answer questions: the same passages and questions for all (`data/decoder_scores.csv`;
# `python workflow/decoder_scores.py MODEL` adds a model). Measurements that ship are read without their weights. So few
# models show no correlation, and no line is drawn through them.

# %%
show(
    score_figures.draw_scores,
    score_figures.take_scores(decoders.beside_coupling(tuple(score_figures.TESTS))),
    name="generalization-decoders",
    caption="Scores against coupling after training: of whole Jacobians (filled) and of their traceless parts "
    "(hollow, joined by a line), with 95 % intervals. Fewer bits per byte are better; guessing answers one question in "
    "three or four.",
    provenance="data/decoder_scores.csv, data/measurements",
)

# %% [markdown]
# ## A suite of our own
#
# Every model of the suite was trained by one recipe on one text; a model is a point, its checkpoints are joined.
# The score is minus the validation loss, and the share of held-out tokens predicted right. Coupling, normalised at
# $K=10$, is a share of the way from chance (0) to perfect coupling (1).

# %%
suite = generalization.suite()
last = correlations.last_checkpoints(suite)
origin = f"data/suite.csv · {len(last)} models, {len(suite)} checkpoints · {suite['versions'].iloc[0]}"
show(
    figures.draw_suite,
    figures.take_suite(suite),
    marked=model,
    name="generalization-suite",
    caption="Score against coupling, one line per model along its training; filled: last checkpoint, with the "
    "least-squares line over these. Colour: width. Marker: architecture.",
    provenance=origin,
)

# %% [markdown]
# ## Early and late in training
#
# All models of the suite but two stop after the same number of tokens, near the point where coupling is at its
# highest and past it. The same models can be compared earlier. Early on, the better models are the more coupled ones;
# at the end they are the less coupled ones. Coupling rises, peaks and falls again as the loss falls, and whoever
# learns faster is further along. A correlation across models therefore says at least as much about the moment as
# about the models.

# %%
untrained = generalization.suite(untrained=True)
signs = correlations.sign_along_training(suite, "negative_loss", figures.READING)
bend = correlations.inverted_u(untrained, figures.READING)
show(
    figures.draw_sign,
    figures.take_sign(signs, untrained),
    name="generalization-sign",
    caption=f"(a) Correlation of coupling with minus validation loss across the same {signs.models.iloc[0]} models, "
    "at each step that they share, with 95 % intervals over models. (b) Coupling against the loss "
    f"of all {len(untrained)} checkpoints, step 0 included, with a line and a parabola.",
    provenance=origin,
)

# %% [markdown]
# A line explains a third of the variance in the right panel, a parabola twice as much. Most of what the line explains
# is the step from untrained to trained: without step 0 the line has almost nothing left, and the parabola keeps its
# lead.

# %%
{name: round(value, 3) for name, value in bend.items()}

# %% [markdown]
# These figures hold two correlations, which need not agree: one along the training of one model, where only
# training differs, and one across models at one moment. The table gives the first for each model.

# %%
headed(correlations.within_models(suite, "negative_loss", figures.READING)).round(2)

# %% [markdown]
# ## At one size
#
# Models of the suite differ in size as well. An experiment leaves size alone: models of one shape (width 64, 8
# blocks), 12 M tokens each, made better or worse by the share of corrupted tokens, by how much text there was to
# repeat, and by the learning rate. The score is minus the loss on authors of whom nothing was trained on. What was
# expected stands in `data/predictions.toml`, written down before.

# %%
made = quality.finished(quality.quality()).assign(coupling=lambda t: 1 - t[quality.READINGS[""]])
along = correlations.sign_along_training(made[made["step"] > 0], "negative_loss", "coupling")
show(
    figures.draw_sign,
    figures.take_sign(along, made, "coupling"),
    name="generalization-quality",
    caption=f"{along.models.iloc[0]} models of one size, made better and worse on purpose. (a) Correlation of "
    "coupling with minus validation loss at each step, with 95 % intervals over models. (b) Coupling, normalised "
    f"at K = 10, against the loss of all {len(made)} checkpoints, with a line and a parabola.",
    provenance=f"data/quality.csv · {made['versions'].iloc[0]}",
)

# %% [markdown]
# The answers by three readings: coupling, coupling of the traceless part, and coupling of neighbouring blocks.

# %%
headed(quality.estimates(made, [*quality.READINGS.values()]).query("question != 'equal steps'")).round(2)

# %% [markdown]
# These correlations have rivals: the settings by which models were made better and worse move coupling as well. The
# table holds each setting fixed, and all three. Standard deviations are of what is then left: where hardly any score is
# left, nothing can correlate with it.

# %%
headed(quality.held_table(made, quality.READINGS[""]).drop(columns=["error", "skew", "freedom"])).round(3)

# %% [markdown]
# The same for readings that compare bases alone: whether two blocks use the same output (uu) or input (vv) directions.

# %%
for reading in quality.BASES.values():
    held = quality.held_table(made, reading).query("held in ('nothing', 'all three')")
    print(reading, held[["moment", "held", "value", "low", "high"]].round(2).to_string(index=False), sep="\n")

# %% [markdown]
# ## At one quality
#
# The converse leaves quality alone. Models of one recipe and five widths are compared where their validation loss is
# the lowest that all of them reach. What then differs with the width is no matter of how good they are. Where K grows
# with the width, chance falls with it; so all but the reading of figure 1a are shares of the way from chance to perfect
# coupling. Two models of a width are no two trials of a relation with width: five widths are five values.

# %%
wide = quality.finished(width.width())
show(
    width_figures.draw_width,
    width_figures.take_width(wide),
    name="generalization-width",
    caption=f"Coupling of {wide['model'].nunique()} equally good models against their width. (a) 1 - released "
    "trace, K a tenth of the width, before training as well, and the curve of width. (b) Normalised coupling at two "
    "K, as a share of the way from chance (0) to perfect coupling (1).",
    provenance=f"data/width.csv · {wide['versions'].iloc[0]}",
)

# %%
{name: [round(part, 2) for part in effect[:3]] for name, effect in width.relations(wide).items()}

# %% [markdown]
# ## Every reading, every number of vectors
#
# With many readings to choose from, some correlate with anything. These are the models of one budget of tokens, at the
# end of it. Filled marks on the left survive Holm's correction for all readings. Look at the readings whose sign turns
# relative to chance: as measured they show their value by chance, which depends on the width, and not coupling alone.

# %%
budget = correlations.equal_tokens(last)
show(
    figures.draw_variants,
    figures.take_variants(budget),
    name="generalization-all-variants",
    caption="Correlation of minus validation loss and coupling over the last checkpoints of the models with equal "
    "tokens, for every reading and K. "
    "Positive: more coupling, better model. Hollow on the left: not significant at 5 % after Holm's correction.",
    provenance=origin,
)

# %% [markdown]
# One of these readings as scatter plots, a panel for each number of vectors, as the paper repeats its figure 1a for
# several $K$.

# %%
show(
    paper_models.draw_each_k,
    paper_models.take_each_k(budget),
    name="generalization-each-k",
    caption="Minus validation loss against normalised coupling relative to chance at three K, for the last "
    "checkpoints of the models with equal tokens, with least-squares lines. Colour: width.",
    provenance=origin,
)

# %% [markdown]
# ## Rivals
#
# What else would have predicted the score? The left panel shows each candidate by itself. The right panel shows its
# partial correlation with all others held fixed.

# %%
show(
    figures.draw_rivals,
    figures.take_rivals(last),
    name="generalization-rivals",
    caption="Coupling and its rivals over the last checkpoints. (a) R² of a line, with 95 % interval over "
    "models. (b) Partial correlation given all other predictors.",
    provenance=origin,
)

# %% [markdown]
# The models did not all see the same number of tokens, and those that saw more predict better. The table takes the
# models of the commonest budget alone, and says what each candidate explains of minus validation loss:

# %%
equal = correlations.rival_table(budget, "negative_loss", figures.READING)
headed(equal).round(3)

# %% [markdown]
# Other authors propose other predictors of quality: alpha and alpha-hat from the spectra of weights (WeightWatcher),
# the stable rank of weights, and how much a block turns a state (ShortGPT's block influence). We measured them for the
# models of equal tokens, and for vision transformers on photographs (`python -m companion.training.rivals`).

# %%
known = rivals.rivals()
show(
    rival_figures.draw_signs,
    rival_figures.take_signs(known),
    name="generalization-signs",
    caption="Predictors of quality, over models of equal tokens and over vision transformers on photographs: how each "
    "correlates with the score, and how coupling does with that predictor held fixed. Bars: 95 % intervals over "
    "models.",
    provenance="data/rivals.csv, data/suite.csv, data/cifar_grid.csv",
)

# %%
show(
    figures.draw_sizes,
    figures.take_suite(suite),
    name="generalization-sizes",
    caption="Score and coupling against size, shape and training tokens; the last checkpoint of each model, and all "
    "checkpoints against tokens. r: correlation with the logarithm.",
    provenance=origin,
)

# %% [markdown]
# A fit is tested by models that it has not seen. Whole groups are left out in turn (an architecture, a width, a
# depth) and predicted from the rest; below 0 the prediction is worse than the mean.

# %%
groups = correlations.group_table(last, "negative_loss", figures.READING)
headed(groups).round(2)

# %% [markdown]
# ## A line or an exponential?
#
# The paper fits both to its figure. Cross-validation asks which of the two predicts points that it was not fitted to.
# Which points are left out together is drawn at random, so it is drawn forty times; `wins` counts the draws in which
# the exponential is ahead. `gain` is its lead in R², and its interval says what other families of models could have
# given.

# %%
shaped = {
    "The paper's figure 1a": (points["coupling"], points["score"]),
    "The suite": (last[figures.READING], last["negative_loss"]),
}

# %%
show(
    figures.draw_shapes,
    figures.take_shapes(shaped),
    name="generalization-shapes",
    caption="Straight line and exponential, fitted by least squares to all points.",
    provenance="data/paper_figures.csv (digitised), data/suite.csv",
)

# %%
shapes = correlations.shape_table(shaped, {"The paper's figure 1a": figure_1a.base_family(points["family"])})
headed(shapes).round(3)

# %% [markdown]
# ## The leaderboard
#
# Scores of all models of the registry on the first Open LLM Leaderboard; every row of `data/models.csv` names its
# source. GSM8K, which needs several steps of arithmetic, is set against the mean of the other five.

# %%
board = generalization.leaderboard()
show(
    figures.draw_leaderboard,
    figures.take_leaderboard(board),
    marked=model,
    name="generalization-leaderboard",
    caption="Six tasks and their mean (in per cent) against parameters, and GSM8K against the mean of the other five.",
    provenance=f"data/models.csv · {len(board)} models",
)

# %% [markdown]
# ## Measured couplings
#
# Coupling of the paper's models as far as they have been measured on this machine, at the end of training, in float32,
# on the prompts of the chapters: `trace` is 1 - `released_trace` with $K = 0.1\,d$, to be compared with the digitised
# value; `normalized` is $1 - \tilde m$ at $K = 10$. Where a model has not been measured, the last column says how to.

# %% tags=["nbval-ignore-output"]
models = generalization.measured_models()
print(generalization_numbers.measured_sentence(models))
headed(models.drop(columns=[name for name in paper_models.EACH_K if name != "trace"])).round(4)

# %% [markdown]
# The same models against their score, as in the paper's figure 1a.

# %% tags=["nbval-ignore-output"]
show(
    paper_models.draw_measured,
    paper_models.take_measured(models, board),
    name="generalization-measured",
    caption="Mean of six benchmarks against coupling measured on this machine: the reading that the axis of "
    "figure 1a follows, beside the digitised values of the paper (hollow), and, of models that were measured, "
    "normalised coupling at K = 10.",
    provenance="measurements of this machine, data/models.csv",
)

# %% [markdown]
# Where models of the paper have been measured, this reading stands here at several $K$, as in the paper's figure 36.

# %% tags=["nbval-ignore-output"]
each_k = paper_models.take_measured(models, board, paper_models.EACH_K)
show(
    paper_models.draw_measured,
    each_k if each_k["trace_10"].notna().any() else None,
    name="generalization-measured-each-k",
    caption="Mean of six benchmarks against coupling measured on this machine at four K: 1 - released trace, "
    "with the digitised values of the paper (hollow) where K is a tenth of the width.",
    provenance="measurements of this machine, data/models.csv",
)

# %% [markdown]
# ## What if coupling is encouraged, or hindered?
#
# A correlation does not say what causes what. An experiment does: `coupling_loss` measures how far blocks are from
# sharing their singular vectors and is added to the training loss with a weight, its strength. A negative strength
# drives blocks apart. A control adds as large a gradient in random directions: its cost is no doing of coupling. Each
# begins at step 0, or at step 300, when coupling has peaked. Runs of one seed share initialisation and batches, so that
# differences are taken within seeds. It is the paper's open question, asked of small models (six blocks, width 48, 600
# steps); `make regularised TEXT=folder` repeats it on any text.

# %%
runs = regularised.finished(regularised.regularised())
show(
    experiment.draw_changes,
    experiment.take_changes(runs),
    name="generalization-regularised",
    caption="Change of validation loss against change of coupling: by pushes of three strengths, by one of the "
    "traceless part alone, and by the control. A point is a run minus its twin without a push; the line is the mean "
    "over seeds of the slope over the three strengths.",
    provenance=f"data/regulariser.csv · {len(runs)} runs · {runs['versions'].iloc[0]}",
)

# %% [markdown]
# The loss of every arm minus that of the control from the same step, with its interval over seeds:

# %%
{name: [round(part, 4) for part in effect[:3]] for name, effect in regularised.over_sham(runs).items()}

# %% [markdown]
# ## In numbers

# %% tags=["nbval-check-output"]
quoted = generalization_numbers.numbers_of(points, suite, untrained, shapes, board, runs)
summary = generalization_numbers.take_summary(quoted)
print(f"{len(last)} models, {len(budget)} of them with equal tokens, {len(suite)} checkpoints")
print(summary.to_string(float_format="%.2f"))

# %% tags=["hide-input"]
more = rivals.numbers_of(known) | quality.numbers_of(made) | width.numbers_of(wide) | decoders.numbers_of()
remember("generalization", quoted | more)
