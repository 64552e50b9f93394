"""How the embedded models are trained: one recipe per kind of model, resumable and seeded."""
