"""Training: it is handed a model, a stream and a way to validate, and never loses a step."""
