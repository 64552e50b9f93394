"""From tables of many models to the numbers of a chapter: correlations, effects, the paper's own values."""
