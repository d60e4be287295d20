"""NaN in the logits of other people's tests: what `pytest --nanwatch` looks with. No journal, no threads."""
