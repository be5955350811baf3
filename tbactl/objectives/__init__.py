"""From log-probs and rewards to a loss. Tensors in, tensors out: no model, no process, no I/O."""
