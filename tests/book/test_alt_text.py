"""Alternative texts: extremes and their places, and means of one network and one quantity."""

import pandas as pd
from alt_text import alternative_text


def test_alternative_text_names_extreme_pairs_models_and_diagonals():
    pairs = {"block_jacobian": [1, 1, 2] * 2, "block_vectors": [2, 3, 3] * 2}
    networks = ["trained"] * 3 + ["untrained"] * 3
    table = pd.DataFrame({"network": networks, **pairs, "mismatch": [0.5, 0.7, 0.6, 0.95, None, 0.95]})
    assert alternative_text(table) == (
        "Trained: mismatch from 0.5 at block 1 for its Jacobian and block 2 for its vectors "
        "to 0.7 at block 1 for its Jacobian and block 3 for its vectors, mean 0.6. Untrained: mismatch 0.95."
    )
    rows = [(1, 1, 0, 1.0, 0.0), (1, 1, 1, 0.0, 1.0), (1, 2, 0, 3.0, 4.0), (1, 2, 1, 5.0, 0.0)]
    table = pd.DataFrame(rows, columns=["block_jacobian", "block_vectors", "row", "entry_1", "entry_2"])
    assert alternative_text(table) == "Matrices of 2 by 2 with 18 % of their energy on the diagonal."
    beside = {"score_low": [0.0] * 8, "p_value": [0.5] * 8}
    table = pd.DataFrame({"model": [f"m{n}" for n in range(8)], "score": [*range(7), 1234.5], **beside})
    assert alternative_text(table) == "Score from 0 at m0 to 1,235 at m7, mean 157."


def test_alternative_text_averages_alike_and_omits_internal_names():
    models = [f"m{n}" for n in range(4) for _ in range(4)]
    networks = ["untrained", "untrained", "trained", "trained"] * 4
    table = pd.DataFrame({"model": models, "network": networks, "coupling": [0.1, 0.2, 0.5, 0.6] * 4})
    told = "coupling from 0.1 at untrained to 0.6 at trained, mean 0.15 untrained and 0.55 trained."
    assert alternative_text(table) == " ".join(f"M{n}: {told}" for n in range(4))
    table = pd.DataFrame({"version": [f"v{n}" for n in range(8)], "value": [*range(8)]})
    assert alternative_text(table) == "From 0 at v0 to 7 at v7."
    arms = {"arm": ["sham0.3", "shared0.3"] * 2, "how": ["a", "a", "b", "b"], "holm": 0.5, "begin": [0, 300] * 2}
    table = pd.DataFrame({**arms, "rank": [30.5, 31.5, 32.5, 33.5], "tokens": [1, 2, 3, 4], "value": [1, 2, 3, 2.0]})
    told = "from 1 at tokens 1 to 3 at tokens 3. Traceless part 0.3: rank from 31.5 at tokens 2 to 33.5 at tokens 4"
    assert alternative_text(table) == f"Control 0.3: rank from 30.5 at tokens 1 to 32.5 at tokens 3; {told}; 2."
    # What is measured tells rows apart before the network does; steps stand for tokens; a last 5 is rounded up.
    table = pd.DataFrame({"network": list("abab"), "test": list("ccdd"), "step": 5, "tokens": 9, "value": 0.6425})
    assert alternative_text(table) == "C, a: 0.643. C, b: 0.643. D, a: 0.643. D, b: 0.643."
