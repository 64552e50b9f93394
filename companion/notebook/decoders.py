"""Models with scores, beside their coupling: shipped measurements are read without weights, others are measured."""

import pandas as pd

import coupling_lib as cl
from companion.notebook.shipped import shipped_networks
from companion.tables import decoder_scores


def beside_coupling(tests: tuple[str, ...], n_prompts: int = 12) -> pd.DataFrame:
    """Return the coupling of every model of `data/decoder_scores.csv` beside its scores in some tests."""
    scores, prompts, ks = decoder_scores.decoder_scores(), cl.load_prompts(n=n_prompts), (decoder_scores.K,)
    models = {}
    for name in [] if scores.empty else scores["model"].unique():
        found = shipped_networks(cl.measure_depth, name, prompts, ks=ks)
        models[name] = found["trained"] if found else cl.sweep(cl.measure_depth, cl.load_model(name), prompts, ks=ks)
    return decoder_scores.beside_coupling(models, scores, tests)


def numbers_of() -> dict[str, float]:
    """Return the numbers that the book quotes of `data/decoder_scores.csv`, by name."""
    return decoder_scores.numbers_of(decoder_scores.decoder_scores())
