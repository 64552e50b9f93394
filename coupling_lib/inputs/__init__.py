"""What a model is given: prompts, pictures, and the parameters of a notebook."""
