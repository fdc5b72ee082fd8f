"""`python -m rl_tpu VERB ...`."""

from rl_tpu.cli import main

if __name__ == '__main__':
  main.run()
