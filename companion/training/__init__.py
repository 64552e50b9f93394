"""Training of the embedded models: one recipe per kind of model, resumable and seeded."""
