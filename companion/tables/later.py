"""Second rise of coupling after its fall, `data/later.csv`: two small models with long training."""

import pandas as pd

from companion.tables import effects, phases
from companion.tables.generalization import coupling_columns
from companion.tables.inference import Effect, effect_of, with_error
from coupling_lib import paths
from coupling_lib.measures.random_bases import null_spreads

MODELS = ("long-neox", "long-llama")
PARTS = {"coupling": "coupling rises again", "shared": "the shared part rises again"}
"""Whole Jacobians and their traceless part, by the prefix of their prompts' columns, and the question about each."""

LATE = (516, 1642)
"""First and last of the last three steps of `phases`, between which the change of coupling varies with the seed."""

REPORTED = (
    "million_tokens", "coupling", "shared", "near", "far", "alike", "validation_loss", "induction", "rank", "norm",
)  # fmt: skip
"""Columns that are reported at four steps of each model."""

PYTHIA = {"pythia-6.9b": 6_857_302_016, "pythia-12b": 11_846_072_320}
"""Models of the paper's figure 1b, and their number of parameters, which the registry rounds."""
PYTHIA_STEPS = {"first": 128, "last": 143_000}
"""First and last step of that figure."""
PYTHIA_BATCH = 1024 * 2048
"""Tokens of a step of their training."""


def clocks(own: pd.DataFrame) -> dict[str, float]:
    """Return training tokens, in millions and per parameter, at the ends of training, of Pythia and of one model."""
    # It is not known by which of the two clocks to compare: by the first the ranges are disjoint.
    found = {}
    for name, parameters in PYTHIA.items():
        for word, step in PYTHIA_STEPS.items():
            tokens = step * PYTHIA_BATCH
            found[f"{name.replace('.', '-')}-{word}-million-tokens"] = tokens / 1e6
            found[f"{name.replace('.', '-')}-{word}-per-parameter"] = tokens / parameters
    trained = own[own["step"] > 0].sort_values("step")
    for word, at in (("first", 0), ("last", -1)):
        row = trained.iloc[at]
        found[f"nano-neox-{word}-million-tokens"] = row["tokens"] / 1e6
        found[f"nano-neox-{word}-per-parameter"] = row["tokens"] / row["parameters"]
    return found


def later() -> pd.DataFrame:
    """Read the table, with coupling over all its prompts, of neighbours, and of blocks half the depth apart or more."""
    table = phases.phases(paths.DATA / "later.csv")
    table = table.assign(**{part: table.filter(regex=rf"^{part}_p\d+$").mean(axis=1) for part in PARTS})
    pairs = {name: tuple(map(int, name.split("_")[1:])) for name in table.columns if name.startswith("pair_")}
    distance = {name: abs(block - other) for name, (block, other) in pairs.items()}
    half = table["blocks"].iloc[0] // 2
    near, far = [n for n, d in distance.items() if d == 1], [n for n, d in distance.items() if d >= half]
    means = {"near": table[near].mean(axis=1), "far": table[far].mean(axis=1)}
    return table.assign(**means, million_tokens=table["tokens"] / 1e6)


def seed_scatter(part: str) -> tuple[float, float]:
    """Return the standard deviation over seeds of coupling's change between two late steps, and its freedom."""
    own = phases.finished(phases.phases()).pivot(index="model", columns="step", values=part)
    change = own[LATE[1]] - own[LATE[0]]
    return float(change.std()), len(change) - 1.0


def lowest_step(table: pd.DataFrame, part: str) -> int:
    """Return the step of one model, from its peak on, at which coupling is lowest."""
    # By the predicted variant, which has fewer prompts than the change in question.
    course = 1 - table.set_index("step")[phases.READINGS[part]].sort_index()
    return int(course.loc[course.idxmax() :].idxmin())


def change(table: pd.DataFrame, part: str, model: str) -> tuple[int, Effect]:
    """Return the step at which the other model is lowest, and this one's change from there to the last."""
    own, step = table[table["model"] == model], lowest_step(table[table["model"] != model], part)
    prompts = own.set_index("step").filter(regex=rf"^{part}_p\d+$")
    return step, with_error(effect_of(prompts.loc[prompts.index.max()] - prompts.loc[step]), *seed_scatter(part))


def answers(table: pd.DataFrame) -> dict[tuple[str, str], Effect]:
    """Return the effects that answer the questions of `data/predictions.toml`, by question and model."""
    found = {}
    for part, question in PARTS.items():
        for model in MODELS:
            step, effect = change(table, part, model)
            found[question, f"{model}, from step {step:,}"] = effect
    return found


def numbers_of(table: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that prose quotes: the answers, and each model at its peak, its lowest step and its end."""
    if set(table["model"]) != set(MODELS):
        return {}
    changes = {f"{model}-{part}-change": change(table, part, model)[1] for part in PARTS for model in MODELS}
    found = effects.numbers(changes, "later")
    readings = [column for column in coupling_columns(table) if column.endswith("_k10")]
    nano = phases.phases().query("model == 'nano-neox'")
    found |= {"later-readings": float(len(readings)), "later-prompts": float(table.filter(like="coupling_p").shape[1])}
    for name, own in (("-nano-neox", nano), ("", table)):
        found[f"later-tokens-per-parameter{name}"] = float((own["tokens"] / own["parameters"]).max())
    found |= {f"clock-{name}": float(value) for name, value in clocks(nano).items()}
    for model, own in table.groupby("model"):
        of_steps = own.set_index("step").sort_index()
        *_, before, last = of_steps.index
        steps = {"peak": of_steps["coupling"].idxmax(), "lowest": lowest_step(own, "coupling"), "last": last}
        for word, step in (steps | {"before": before}).items():
            values = of_steps.loc[step, list(REPORTED)]
            found |= {f"later-{model}-{word}-{name.replace('_', '-')}": float(values[name]) for name in REPORTED}
            found[f"later-{model}-{word}-step"] = float(step)
        chance = of_steps[[f"{column}_null" for column in readings]].to_numpy()
        beyond = pd.DataFrame(chance - of_steps[readings].to_numpy(), of_steps.index).abs()
        found[f"later-{model}-readings-lost"] = float((beyond.loc[last] < 0.1 * beyond.loc[steps["peak"]]).sum())
        found |= effects.numbers({f"{model}-beyond": beyond_chance(of_steps.loc[last])}, "later")
    return found


def beyond_chance(row: pd.Series) -> Effect:
    """Return coupling at one step minus that of random bases; a network is one draw of bases, whatever its prompts."""
    values = row.filter(regex=r"^coupling_p\d+$").to_numpy(float) - (1 - row["normalized_miscoupling_k10_null"])
    chance = null_spreads(10, int(row["blocks"]))["all pairs"]
    return with_error(effect_of(values), chance, len(values) - 1.0)
