"""Inputs of a model: prompts, pictures, and the prompt arguments of a measurement."""
