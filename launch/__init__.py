"""Where an experiment runs: a laptop, a TPU pod. Imports nothing of rl_tpu."""
