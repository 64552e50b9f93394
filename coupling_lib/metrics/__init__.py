"""The mathematics of coupling, on tensors alone: no models, no files, no figures."""
