"""Where metrics and samples go: JSON lines always, TensorBoard and Weights & Biases when asked for."""
