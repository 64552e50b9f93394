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
# # Coupling prompt by prompt
#
# Coupling is measured at the states that a prompt leads to, so it may differ from prompt to prompt. This notebook
# compares it with what prompts are like: how many steps of reasoning they ask for, how long they are, which data set
# they come from. Then it ends questions with the instruction to think step by step, and shows which blocks respond.

# %% tags=["parameters", "hide-input"]
model: str = "nano-neox"  # alias of data/models.csv, Hugging Face id, or a local folder
precision: str = "float32"  # how the weights are held: float32, bfloat16, float16, nf4, fp4 or int8
memory: str = ""  # the most that weights may take, as 8GB; what does not fit stays on disk; empty for what is free
revision: str = ""  # branch, tag, commit or training step such as step1000; empty for the newest
prompts: int = 24  # number of embedded prompts; or a set's name or file, as benchmarks:1200
questions: int = 16  # number of embedded questions with counted reasoning steps; or a set or file, as gsm8k:200
k: int = 10  # number of singular vectors compared, from 2 to the model's width
token: int = -1  # token position whose Jacobian is taken; -1 is the last
others: str = ""  # further models that get the same questions, separated by commas, as nano-llama; may be empty
seed: int = 0  # seed of the untrained weights, of the selection of prompts and of the random directions

# %% tags=["hide-input"]
import coupling_lib as cl
from companion.figures import many_prompts as by_set
from companion.figures import prompts as by_prompt
from companion.figures.show import made_by, remember, show
from companion.notebook import choices, parameters
from companion.notebook.heads import headed
from companion.tables import prompt_effects
from companion.tables.arrays import side_by_side
from coupling_lib.measures.depth import other_models
from coupling_lib.measures.prompts import prompt_versions

_more = ("prompts", "questions", "k", "token", "others", "seed")
p = parameters.check_parameters(globals(), declared=("model", "precision", "memory", "revision", *_more))
command = made_by("prompts", vars(p))

# %% [markdown]
# ## Measurement
#
# For every prompt, the coupling matrices $A_{ll'} = U_{l',K}^\top J_l\, V_{l',K}$ of all pairs of blocks at the chosen
# token, as in the notebook on depth. Each question is measured three times: alone, followed by *Let's think step by
# step.*, and followed by a control, a plain statement that has about as many tokens and ends in a full stop as well. An
# effect that the control has too need not come from what the instruction says: more tokens, or another last one, may
# cause it.

# %%
loaded = cl.load_model(model, precision=precision, memory=memory or None, revision=revision or None)
choices.check_k(loaded, k)
asked = [*choices.chosen_prompts(prompts, seed), *prompt_versions(loaded, choices.chosen_questions(questions, seed))]
trained = cl.measure_prompts(loaded, asked, ks=(k,), token=token, variables=by_prompt.DRAWN)

# %% [markdown]
# The untrained model has the same configuration and freshly drawn weights. It takes the place of the trained one in
# memory.

# %%
del loaded
loaded = cl.load_model(
    model, precision=precision, memory=memory or None, revision=revision or None, untrained=True, seed=seed
)
untrained = cl.measure_prompts(loaded, asked, ks=(k,), token=token, variables=by_prompt.DRAWN)
del loaded

# %% [markdown]
# All figures show one way of measuring the distance from perfect coupling, the off-diagonal share
# $\tilde m = \lVert A - \mathrm{Diag}\,A\rVert_F / \lVert A\rVert_F$; *coupling* is $1-\tilde m$, here averaged over
# pairs of different blocks. Its value by chance, when blocks with the same singular values share no direction, stands
# beside it with its standard error.

# %%
networks = side_by_side(untrained=untrained, trained=trained)
null = cl.null_of(trained, "normalized_miscoupling", seed=seed)

# %% [markdown]
# ## Difficulty, length, data set
#
# The paper compares coupling with the difficulty ratings of Easy2Hard-Bench. Here difficulty is the number of reasoning
# steps in the solution of a GSM8K problem, or of one in its style: a count that anybody can check, but a coarser one.
# The paper's second panel is the length of the prompt. Where prompts carry ratings, as in a file with a `rating` or a
# `difficulty` of each (`-p prompts rated.jsonl:200`), these take the place of the steps.
#
# $\rho$ is Spearman's coefficient over prompts, with its 95 % interval.
# Longer problems often take more steps, and data sets differ in length and in how their prompts end; the table
# below therefore also gives the coefficients with length held fixed, and within data sets.

# %%
difficulty = by_prompt.take_prompts(networks, null=null)
show(
    by_prompt.draw_prompts,
    difficulty,
    name="prompts-difficulty",
    caption="Coupling of single prompts, mean over pairs of blocks, against "
    "reasoning steps, length and data set. Lines: least squares. Bars: 95 % intervals of the mean. Dashed: by chance.",
)

# %% tags=["hide-input"]
headed(by_prompt.correlation_table(difficulty)).round(2)

# %% [markdown]
# ## With and without an instruction
#
# The upper panels show each block's mean coupling with all others. The lower panels show what the added sentence
# changes, question by question. Where the two bands of a model lie apart, the instruction does what another sentence
# does not. The paper, which has no such control, reports more coupling with the instruction in the Llama family, about
# as much in Gemma, less in phi-2 and slightly more in phi-1.5.

# %%
show(
    by_prompt.draw_versions,
    by_prompt.take_versions(networks, null=null),
    name="prompts-instruction",
    caption=f"{model}: coupling of each block with all others, for questions alone and with a sentence added: mean "
    "over questions with 95 % interval. Below: paired differences. Dashed: by chance. "
    f"{by_prompt.versions_caption(trained)}",
)

# %% [markdown]
# The parameter `others` puts the same questions to further models; each gets a control sentence that suits its own
# tokenizer, and stands beside this one after training, ordered by size.

# %%
models = {model: trained}
for name in other_models(others, besides=model):
    loaded = cl.load_model(name, precision=precision, memory=memory or None)
    versions = prompt_versions(loaded, choices.chosen_questions(questions, seed))
    models[name] = cl.measure_prompts(loaded, versions, ks=(k,), token=token, variables=by_prompt.DRAWN)
    del loaded

# %%
show(
    by_prompt.draw_versions,
    by_prompt.take_models(models, null=null) if len(models) > 1 else None,
    name="prompts-models",
    caption="Coupling of each block with all others in trained models, for questions alone and with a sentence added: "
    "mean over questions with 95 % interval. Below: paired differences. Dashed: by chance.",
)

# %% [markdown]
# ## Over many prompts
#
# The questions above are few. `data/many_prompts.csv` holds 200 prompts of each of six sets, and more, of the models
# that ship with the project, each measured as above; `python -m companion.tables.many_prompts MODEL --folder PROMPTS`
# measures another model. Passages of novels, articles, programs and random tokens are, one by one, as long as GSM8K's
# questions.

# %%
many = prompt_effects.chosen(model, precision, revision, token)
show(
    by_set.draw_sources,
    None if many is None else by_set.take_sources(many),
    name="prompts-sources",
    caption=f"{model}: coupling at the last token, mean over pairs of blocks, by set of prompts: mean with its 95 % "
    "interval, pale one standard deviation of prompts. Traceless part: without uniform scaling. Dashed: by chance.",
)

# %% [markdown]
# Word problems of our own have as many sentences and as many numbers each, of which 1 to 8 matter to the answer: there
# difficulty varies and length hardly does.

# %%
show(
    by_set.draw_questions,
    None if many is None else by_set.take_questions(many),
    name="prompts-many",
    caption=f"{model}: (a) coupling on word problems by the reasoning steps that they need; (b) change of coupling by "
    "a sentence added to a question of GSM8K. Means with 95 % intervals, pale one standard deviation of prompts.",
)

# %% [markdown]
# ## In numbers
#
# The table gives the mean coupling over the questions in each version.

# %% tags=["nbval-check-output"]
summary = by_prompt.take_summary(networks, null=null)
print(summary[["alone", "step by step", "control sentence"]].to_string(float_format="%.2f"))

# %% tags=["hide-input"]
remember("prompts", by_prompt.numbers_of(networks, null=null))
if many is not None:
    remember("prompts", prompt_effects.numbers(many, trained.attrs["n_blocks"]) | prompt_effects.spreads())
