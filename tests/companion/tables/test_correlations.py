"""Statistics over tables of models, against numpy written out."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from companion.tables import correlations, generalization, regression
from coupling_lib.errors import CouplingError, ParameterError, UntrustworthyResultError

COUPLING = "normalized_miscoupling_k10_relative"


def r(x, y):
    return np.corrcoef(np.asarray(x, dtype=float), np.asarray(y, dtype=float))[0, 1]


def share(y, predicted):
    """Return R² of predictions of points that were left out."""
    return 1 - np.mean((y - predicted) ** 2) / np.var(y)


def made_up() -> pd.DataFrame:
    """Twelve models of four checkpoints: width drives coupling's null, tokens the score."""
    rng, rows = np.random.default_rng(0), []
    for number, step in product(range(12), (10, 100, 300, 600)):
        width, blocks, coupling = (32, 48, 64, 96)[number % 4], (4, 8, 12)[number % 3], rng.uniform(0.1, 0.4)
        loss = 8 - np.log10(step) - 0.3 * np.log2(width) - coupling + 0.05 * rng.standard_normal()
        rows.append(
            {
                "model": f"m{number}", "width": width, "blocks": blocks, "step": step, "tokens": 1000 * step,
                "architecture": "neox" if number < 8 else "llama", "parameters": 12 * blocks * width**2,
                "validation_loss": loss, "negative_loss": -loss, "accuracy": 1 / loss, "final": step == 600,
                "log_parameters": np.log10(12 * blocks * width**2), "log_tokens": np.log10(1000 * step),
                "line_shape_score": rng.uniform(1, 3), "log_expodistance": rng.uniform(0, 1),
                "normalized_miscoupling_k10": 1 - coupling, "normalized_miscoupling_k10_null": 0.95,
                COUPLING: coupling, "mismatch_k5": rng.uniform(0.5, 1), "mismatch_k5_null": 1.0,
                "mismatch_k5_relative": rng.uniform(0, 0.5),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


SUITE = made_up()
LAST = correlations.last_checkpoints(SUITE)


def test_last_checkpoints_are_one_row_per_model():
    assert len(LAST) == 12 and (LAST.step == 600).all()
    few = [SUITE[SUITE.model.isin([f"m{n}" for n in range(count)])] for count in (2, 5)]
    refused(ParameterError, "2 models; at least 5", correlations.last_checkpoints, few[0])
    assert len(correlations.last_checkpoints(few[1])) == 5
    longer = LAST.assign(tokens=np.where(LAST.model == "m3", 10 * LAST.tokens, LAST.tokens))
    assert "m3" not in correlations.equal_tokens(longer).model.tolist() and len(correlations.equal_tokens(LAST)) == 12


def test_variant_p_values_are_corrected_by_holm():
    table = correlations.variant_table(LAST, "negative_loss").set_index(["variant", "k"])
    assert list(table.index) == [("normalized_miscoupling", "10"), ("mismatch", "5")]
    found = r(LAST[COUPLING], LAST.negative_loss)
    assert table.iloc[0][["r", "r_squared"]].tolist() == pytest.approx([found, found**2])
    smallest, largest = sorted(table.p)
    assert sorted(table.p_holm) == pytest.approx(sorted([min(1, 2 * smallest), max(2 * smallest, largest)]))


def test_partial_correlation_holds_all_other_rivals_fixed():
    table = correlations.rival_table(LAST, "negative_loss", COUPLING).set_index("predictor")
    assert "training tokens" not in table.index and table.index[0] == "coupling"
    names = ["log_parameters", "blocks", "width", "line_shape_score", "log_expodistance"]
    design = np.column_stack([np.ones(12), LAST[names]])
    rest = [y - design @ np.linalg.lstsq(design, y, rcond=None)[0] for y in (LAST[COUPLING], LAST.negative_loss)]
    assert table.partial["coupling"] == pytest.approx(r(*rest), abs=1e-8)
    assert table.r_low["coupling"] < table.r["coupling"] < table.r_high["coupling"]


def test_left_out_groups_are_predicted_from_the_others():
    table = correlations.group_table(LAST, "negative_loss", COUPLING).set_index("left_out")
    assert table.groups.to_dict() == {"width": 4, "depth": 3}  # the architectures leave only four models to one side
    predicted, x, y = np.empty(12), LAST[COUPLING], LAST.negative_loss
    for out in ((LAST.width == width).to_numpy() for width in (32, 48, 64, 96)):
        predicted[out] = np.polyval(np.polyfit(x[~out], y[~out], 1), x[out])
    assert table.coupling["width"] == pytest.approx(share(y, predicted), abs=1e-9)


def test_correlations_along_training_are_within_each_model():
    table = correlations.within_models(SUITE, "negative_loss", COUPLING).set_index("model")
    part = SUITE[SUITE.model == "m4"]
    assert table.r["m4"] == pytest.approx(r(part[COUPLING], part.negative_loss))
    found = correlations.checkpoints_beside_models(SUITE, "negative_loss", COUPLING)
    assert [found[name] for name in ("within-median", "r", "tokens-r")] == pytest.approx(
        [np.median(table.r), r(SUITE[COUPLING], SUITE.negative_loss), r(SUITE.log_tokens, SUITE[COUPLING])]
    )


def test_lead_of_exponential_is_jackknifed_over_groups():
    rng = np.random.default_rng(3)
    x, groups = rng.normal(size=24), np.repeat(np.arange(8), 3)
    y = np.exp(0.7 * x) + 0.3 * rng.normal(size=24)
    rise = np.linspace(0, 2, 30)
    curves = {"bent": (x, y), "straight": (x, 3 * x), "ungrouped": (rise, np.exp(2 * rise))}
    table = correlations.shape_table(curves, {"bent": groups}, n_seeds=2)
    row, straight, alone = table.itertuples()
    assert (row.points, *table.n, *table.seeds) == ("bent", 24, 24, 30, 2, 2, 2) and straight.linear == pytest.approx(1)
    assert alone.gain > 0.01 and alone.low < alone.gain < alone.high
    assert row.wins == 2 and row.gain == pytest.approx(row.exponential - row.linear, abs=1e-12)

    def lead(kept):
        found = []
        for folds in regression.drawn_folds(24, 2):
            line, bent = np.empty((2, 24))
            for fold in np.unique(folds[kept]):
                seen, own = kept & (folds != fold), kept & (folds == fold)
                line[own] = np.polyval(np.polyfit(x[seen], y[seen], 1), x[own])
                bent[own] = regression.predicted(x[seen], y[seen], x[own], "exponential")[0]
            found.append(share(y[kept], bent[kept]) - share(y[kept], line[kept]))
        return np.mean(found)

    left = np.array([lead(groups != group) for group in range(8)])
    assert row.gain == pytest.approx(lead(groups >= 0)) and row.groups == 8
    assert row.error == pytest.approx(np.sqrt(7 / 8 * np.sum((left - row.gain) ** 2)))
    assert row.high == pytest.approx(1 - row.linear) and row.low < row.gain - 2 * row.error
    refused(UntrustworthyResultError, "y holds 1 NaN", correlations.shape_table, {"": (x, [*y[:-1], np.nan])})


def test_sign_is_computed_at_every_shared_step():
    late = SUITE[~((SUITE.model == "m2") & (SUITE.step == 10))]
    table, now = correlations.sign_along_training(late, "negative_loss", COUPLING), SUITE[SUITE.step == 300]
    assert table.step.tolist() == [100, 300, 600] and (table.models == 12).all()
    assert table.r[1] == pytest.approx(r(now[COUPLING], now.negative_loss)) and table.tokens.tolist()[1] == 300_000
    assert (table.low < table.r).all() and (table.r < table.high).all() and (table.error > 0).all()


def test_parabola_gains_only_where_there_is_one():
    def table(loss, coupling):
        return pd.DataFrame({"validation_loss": loss, COUPLING: coupling, "step": 1, "model": np.arange(60) // 4})

    loss = np.random.default_rng(4).uniform(3, 7, 60)
    made = table(loss, 1 - (loss - 5) ** 2)
    made.loc[:5, "step"] = 0
    bend, value, left = correlations.inverted_u(made, COUPLING), made[COUPLING].to_numpy(), np.empty(60)
    assert [bend[name] for name in ("parabola", "peak", "models")] == pytest.approx([1, 5, 15])
    for own in (made.model.to_numpy() == model for model in range(15)):
        left[own] = np.polyval(np.polyfit(loss[~own], value[~own], 1), loss[own])
    assert bend["gain"] == pytest.approx(1 - share(value, left)) and bend["gain-low"] > 0.5
    assert bend["trained-line"] == pytest.approx(r(loss[6:], value[6:]) ** 2)
    rng, sure = np.random.default_rng(5), 0
    for _ in range(40):
        loss = rng.uniform(3, 7, 60)
        bend = correlations.inverted_u(table(loss, loss + rng.normal(size=60)), COUPLING)
        assert bend["parabola"] > bend["line"]
        sure += bend["gain-low"] > 0
    assert sure <= 2  # of the gain in R² itself, every interval is above 0


@pytest.mark.parametrize(("values", "groups"), [([1, np.nan, 2], [0, 1, 2]), ([1, 2, 3], [0, 1, np.nan])])
def test_mean_over_groups_refuses_gaps(values, groups):
    refused(CouplingError, "holds 1 NaN|or a gap", correlations.mean_over, values, groups)


def test_turn_and_scatter_are_of_other_runs():
    table = SUITE.assign(c=SUITE.step.map({10: 9.0, 100: 1.0, 300: 2.0, 600: 9.0}))
    assert correlations.turn(table, "c") == 300
    alone = table[((table.step != 300) | (table.model == "m1")) & (table.step != 10)]
    refused(ParameterError, "half of the models share 2 trained steps", correlations.turn, alone, "c")
    # Other runs leave out the run itself.
    rng = np.random.default_rng(6)
    rows = [(model, model // 3, model, step, rng.normal()) for model, step in product(range(9), (0, 1, 2, 3))]
    table = pd.DataFrame(rows, columns=["model", "recipe", "seed", "step", "c"])
    found, kept = correlations.other_runs(table, "c", 8), table[(table.model != 8) & (table.step > 0)]
    squares = ((kept.c - kept.groupby(["recipe", "step"]).c.transform("mean")) ** 2).sum()
    assert (found.freedom, found.turn, found.scatter) == (15, 2, pytest.approx((squares / 15) ** 0.5))
    assert np.isnan(correlations.other_runs(table.drop_duplicates(["recipe", "step"]), "c").scatter)


def test_phase_is_cut_at_peak_of_other_models():
    """Without any trend neither phase has one; cut at each model's own peak, both would nearly always."""
    rng, sure = np.random.default_rng(7), 0
    for _ in range(40):
        rows = [(f"m{at:02d}", step, step) for at in range(20) for step in range(1, 6)]
        table = pd.DataFrame(rows, columns=["model", "step", "log_tokens"]).assign(c=rng.normal(size=100))
        found = correlations.tokens_by_phase(table, "c")
        sure += sum(not found[phase]["low"] <= 0 <= found[phase]["high"] for phase in ("rising", "falling"))
    assert sure <= 8
    turned = SUITE.assign(**{COUPLING: -((np.log10(SUITE.step) - 2) ** 2)})
    found, rising = correlations.tokens_by_phase(turned, COUPLING), turned[turned.step <= 100]
    assert (found["rising"]["checkpoints"], found["falling"]["checkpoints"]) == (24, 36)
    assert found["rising"]["r"] == pytest.approx(r(rising.log_tokens, rising[COUPLING])) and found["falling"]["r"] < 0


def test_a_negative_correlation_counts_against_coupling():
    found = correlations.signed_gains(LAST.assign(turned=-LAST.negative_loss), "negative_loss", "turned")["width"]
    assert found.value == pytest.approx(-1 - r(LAST.width, LAST.negative_loss) ** 2) and found.n == 12


def test_one_correlation_has_one_interval_in_every_table():
    """At the last step, and among the rivals; over all checkpoints, and by phase."""
    shipped = generalization.suite()
    last = correlations.sign_along_training(shipped, "negative_loss", COUPLING).iloc[-1]
    budget = correlations.equal_tokens(correlations.last_checkpoints(shipped))
    rival = correlations.rival_table(budget, "negative_loss", COUPLING).set_index("predictor").loc["coupling"]
    assert rival[["r", "r_low", "r_high"]].tolist() == pytest.approx([last.r, last.low, last.high], abs=1e-9)
    beside = correlations.checkpoints_beside_models(shipped, "negative_loss", COUPLING)
    phase = correlations.tokens_by_phase(shipped, COUPLING)["all"]
    for end in ("r", "low", "high"):
        assert beside[f"tokens-{end}"] == pytest.approx(phase[end], abs=1e-9)
