"""Numbers of the chapters from tables of many models: correlations, effects, the paper's own values."""
