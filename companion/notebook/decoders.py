"""Models that have scores, beside how coupled they are: what ships is read without weights, the rest is measured."""

import pandas as pd

import coupling_lib as cl
from companion.notebook.shipped import shipped_networks
from companion.tables import decoder_scores
from coupling_lib.measures.depth import measure_models


def beside_coupling(tests: tuple[str, ...], n_prompts: int = 12) -> pd.DataFrame:
    """Return coupling of every model of `data/decoder_scores.csv` beside its scores in some tests."""
    scores, prompts, ks = decoder_scores.decoder_scores(), cl.load_prompts(n=n_prompts), (decoder_scores.K,)
    models = {}
    for name in [] if scores.empty else scores["model"].unique():
        found = shipped_networks(cl.measure_depth, name, prompts, ks=ks) or measure_models([name], prompts, ks)[name]
        models[name] = found["trained"]
    return decoder_scores.beside_coupling(models, scores, tests)


def numbers_of() -> dict[str, float]:
    """Name the numbers that the book quotes of `data/decoder_scores.csv`."""
    return decoder_scores.numbers_of(decoder_scores.decoder_scores())
