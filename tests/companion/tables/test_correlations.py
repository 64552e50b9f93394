"""Statistics over tables of models, against numpy written out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.tables import correlations, generalization, regression
from coupling_lib.errors import CouplingError, ParameterError, UntrustworthyResultError

COUPLING = "normalized_miscoupling_k10_relative"


def r(x, y):
    return np.corrcoef(np.asarray(x, dtype=float), np.asarray(y, dtype=float))[0, 1]


@pytest.fixture(scope="module")
def suite():
    """Twelve made-up models of four checkpoints: width drives coupling's null, tokens the score."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(12):
        width, blocks = (32, 48, 64, 96)[number % 4], (4, 8, 12)[number % 3]
        for step in (10, 100, 300, 600):
            coupling = rng.uniform(0.1, 0.4)
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


@pytest.fixture(scope="module")
def last(suite):
    return correlations.last_checkpoints(suite)


def test_last_checkpoints_are_one_row_per_model(suite, last):
    assert len(last) == 12 and (last.step == 600).all()
    with pytest.raises(ParameterError, match="2 models; at least 5"):
        correlations.last_checkpoints(suite[suite.model.isin(["m0", "m1"])])
    assert len(correlations.last_checkpoints(suite[suite.model.isin([f"m{n}" for n in range(5)])])) == 5
    longer = last.assign(tokens=np.where(last.model == "m3", 10 * last.tokens, last.tokens))
    assert "m3" not in correlations.equal_tokens(longer).model.tolist() and len(correlations.equal_tokens(last)) == 12


def test_variant_p_values_are_corrected_by_holm(last):
    table = correlations.variant_table(last, "negative_loss").set_index(["variant", "k"])
    assert list(table.index) == [("normalized_miscoupling", "10"), ("mismatch", "5")]
    first = table.loc["normalized_miscoupling", "10"]
    assert first.r == pytest.approx(r(last[COUPLING], last.negative_loss))
    assert first.r_squared == pytest.approx(first.r**2)
    smallest, largest = sorted(table.p)
    assert sorted(table.p_holm) == pytest.approx(sorted([min(1, 2 * smallest), max(2 * smallest, largest)]))


def test_partial_correlation_holds_all_other_rivals_fixed(last):
    table = correlations.rival_table(last, "negative_loss", COUPLING).set_index("predictor")
    assert "training tokens" not in table.index and table.index[0] == "coupling"
    names = ["log_parameters", "blocks", "width", "line_shape_score", "log_expodistance"]
    design = np.column_stack([np.ones(12), last[names]])
    rest = [y - design @ np.linalg.lstsq(design, y, rcond=None)[0] for y in (last[COUPLING], last.negative_loss)]
    assert table.partial["coupling"] == pytest.approx(r(*rest), abs=1e-8)
    assert table.r_low["coupling"] < table.r["coupling"] < table.r_high["coupling"]


def test_left_out_groups_are_predicted_from_the_others(last):
    table = correlations.group_table(last, "negative_loss", COUPLING).set_index("left_out")
    assert table.groups.to_dict() == {"width": 4, "depth": 3}  # the architectures leave only four models to one side
    predicted = np.empty(12)
    for width in (32, 48, 64, 96):
        out = (last.width == width).to_numpy()
        predicted[out] = np.polyval(np.polyfit(last[COUPLING][~out], last.negative_loss[~out], 1), last[COUPLING][out])
    y = last.negative_loss
    share = 1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert table.coupling["width"] == pytest.approx(share, abs=1e-9)


def test_correlations_along_training_are_within_each_model(suite):
    table = correlations.within_models(suite, "negative_loss", COUPLING).set_index("model")
    part = suite[suite.model == "m4"]
    assert table.r["m4"] == pytest.approx(r(part[COUPLING], part.negative_loss))
    found = correlations.checkpoints_beside_models(suite, "negative_loss", COUPLING)
    assert found["within-median"] == pytest.approx(np.median(table.r))
    assert found["r"] == pytest.approx(r(suite[COUPLING], suite.negative_loss))
    assert found["tokens-r"] == pytest.approx(r(suite.log_tokens, suite[COUPLING]))


def test_shapes_are_compared_on_points_not_seen():
    x = np.linspace(0, 2, 30)
    table = correlations.shape_table({"bent": (x, np.exp(2 * x)), "straight": (x, 3 * x)}, n_seeds=3).set_index(
        "points"
    )
    assert table.exponential["bent"] > table.linear["bent"] + 0.01
    assert table.linear["straight"] == pytest.approx(1)
    assert table.n.tolist() == [30, 30] and table.seeds.tolist() == [3, 3]
    gain = table.exponential - table.linear
    np.testing.assert_allclose(table.gain, gain, atol=1e-12)
    assert table.wins["bent"] == 3 and table.low["bent"] < table.gain["bent"] < table.high["bent"]


def test_lead_of_exponential_is_jackknifed_over_groups():
    rng = np.random.default_rng(3)
    x, groups = rng.normal(size=24), np.repeat(np.arange(8), 3)
    y = np.exp(0.7 * x) + 0.3 * rng.normal(size=24)
    row = correlations.shape_table({"": (x, y)}, {"": groups}, n_seeds=2).iloc[0]

    def lead(kept):
        found = []
        for folds in regression.drawn_folds(24, 2):
            line, bent = np.empty((2, 24))
            for fold in np.unique(folds[kept]):
                seen, own = kept & (folds != fold), kept & (folds == fold)
                line[own] = np.polyval(np.polyfit(x[seen], y[seen], 1), x[own])
                bent[own] = regression.predicted(x[seen], y[seen], x[own], "exponential")[0]
            found.append(np.mean((y - line)[kept] ** 2 - (y - bent)[kept] ** 2) / y[kept].var())
        return np.mean(found)

    left = np.array([lead(groups != group) for group in range(8)])
    assert row.gain == pytest.approx(lead(groups >= 0)) and row.groups == 8
    assert row.error == pytest.approx(np.sqrt(7 / 8 * np.sum((left - row.gain) ** 2)))
    assert row.high == pytest.approx(1 - row.linear) and row.low < row.gain - 2 * row.error
    with pytest.raises(UntrustworthyResultError, match="y holds 1 NaN"):
        correlations.shape_table({"": (x, [*y[:-1], np.nan])})


def test_sign_is_computed_at_every_shared_step(suite):
    late = suite[~((suite.model == "m2") & (suite.step == 10))]
    table = correlations.sign_along_training(late, "negative_loss", COUPLING)
    assert table.step.tolist() == [100, 300, 600] and (table.models == 12).all()
    now = suite[suite.step == 300]
    assert table.r[1] == pytest.approx(r(now[COUPLING], now.negative_loss)) and table.tokens.tolist()[1] == 300_000
    assert (table.low < table.r).all() and (table.r < table.high).all() and (table.error > 0).all()


def test_a_parabola_is_found_where_there_is_one():
    rng = np.random.default_rng(4)
    loss = rng.uniform(3, 7, 60)
    table = pd.DataFrame(
        {"validation_loss": loss, COUPLING: 1 - (loss - 5) ** 2, "step": 1, "model": np.arange(60) // 4}
    )
    table.loc[:5, "step"] = 0
    bend = correlations.inverted_u(table, COUPLING)
    assert bend["parabola"] == pytest.approx(1) and bend["peak"] == pytest.approx(5) and bend["models"] == 15
    value, squares = table[COUPLING].to_numpy(), np.empty(60)
    for own in (table.model.to_numpy() == model for model in range(15)):
        squares[own] = (value[own] - np.polyval(np.polyfit(loss[~own], value[~own], 1), loss[own])) ** 2
    assert bend["gain"] == pytest.approx(squares.mean() / value.var()) and bend["gain-low"] > 0.5
    assert bend["trained-line"] == pytest.approx(r(loss[6:], table[COUPLING][6:]) ** 2)


@pytest.mark.parametrize(("values", "groups"), [([1, np.nan, 2], [0, 1, 2]), ([1, 2, 3], [0, 1, np.nan])])
def test_mean_over_groups_refuses_gaps(values, groups):
    with pytest.raises(CouplingError, match="holds 1 NaN|or a gap"):
        correlations.mean_over(values, groups)


def test_parabola_gains_nothing_where_a_line_holds():
    rng, sure = np.random.default_rng(5), 0
    for _ in range(40):
        loss = rng.uniform(3, 7, 60)
        noisy = {"validation_loss": loss, COUPLING: loss + rng.normal(size=60), "step": 1, "model": np.arange(60) // 4}
        bend = correlations.inverted_u(pd.DataFrame(noisy), COUPLING)
        assert bend["parabola"] > bend["line"]
        sure += bend["gain-low"] > 0
    assert sure <= 2  # of the gain in R² itself, every interval is above 0


def test_turn_is_where_half_the_models_peak(suite):
    table = suite.assign(c=suite.step.map({10: 9.0, 100: 1.0, 300: 2.0, 600: 9.0}))
    assert correlations.turn(table, "c") == 300
    alone = table[(table.step != 300) | (table.model == "m1")]
    with pytest.raises(ParameterError, match="half of the models share 2 trained steps"):
        correlations.turn(alone[alone.step != 10], "c")


def test_other_runs_leave_out_the_run_itself():
    rng = np.random.default_rng(6)
    rows = [(model, model // 3, model, step, rng.normal()) for model in range(9) for step in (0, 1, 2, 3)]
    table = pd.DataFrame(rows, columns=["model", "recipe", "seed", "step", "c"])
    found = correlations.other_runs(table, "c", 8)
    kept = table[(table.model != 8) & (table.step > 0)]
    squares = sum(((part - part.mean()) ** 2).sum() for _, part in kept.groupby(["recipe", "step"]).c)
    assert found.freedom == 2 * 3 + 2 * 3 + 1 * 3 and found.scatter == pytest.approx((squares / 15) ** 0.5)
    assert found.turn == 2
    assert np.isnan(correlations.other_runs(table.drop_duplicates(["recipe", "step"]), "c").scatter)


def test_phase_is_cut_at_peak_of_other_models():
    """Without any trend neither phase has one; cut at each model's own peak, both would nearly always."""
    rng, sure = np.random.default_rng(7), 0
    for _ in range(40):
        c = rng.normal(size=(20, 5))
        rows = [(f"m{at:02d}", step, step, c[at, step - 1]) for at in range(20) for step in range(1, 6)]
        found = correlations.tokens_by_phase(pd.DataFrame(rows, columns=["model", "step", "log_tokens", "c"]), "c")
        sure += sum(not found[phase]["low"] <= 0 <= found[phase]["high"] for phase in ("rising", "falling"))
    assert sure <= 8


def test_token_correlation_is_split_at_the_peak(suite):
    turned = suite.assign(**{COUPLING: -((np.log10(suite.step) - 2) ** 2)})
    found = correlations.tokens_by_phase(turned, COUPLING)
    assert (found["rising"]["checkpoints"], found["falling"]["checkpoints"]) == (24, 36)
    rising = turned[turned.step <= 100]
    assert found["rising"]["r"] == pytest.approx(r(rising.log_tokens, rising[COUPLING])) and found["falling"]["r"] < 0


def test_a_negative_correlation_counts_against_coupling(last):
    found = correlations.signed_gains(last.assign(turned=-last.negative_loss), "negative_loss", "turned")["width"]
    assert found.value == pytest.approx(-1 - r(last.width, last.negative_loss) ** 2) and found.n == 12


def test_one_correlation_has_one_interval_in_every_table():
    """At the last step, and among the rivals; over all checkpoints, and by phase."""
    shipped = generalization.suite()
    signs = correlations.sign_along_training(shipped, "negative_loss", COUPLING)
    budget = correlations.equal_tokens(correlations.last_checkpoints(shipped))
    rival = correlations.rival_table(budget, "negative_loss", COUPLING).set_index("predictor").loc["coupling"]
    assert rival[["r", "r_low", "r_high"]].tolist() == pytest.approx(
        signs.iloc[-1][["r", "low", "high"]].tolist(), abs=1e-9
    )
    beside = correlations.checkpoints_beside_models(shipped, "negative_loss", COUPLING)
    phase = correlations.tokens_by_phase(shipped, COUPLING)["all"]
    ends = ("r", "low", "high")
    assert [beside[f"tokens-{end}"] for end in ends] == pytest.approx([phase[end] for end in ends], abs=1e-9)
