"""Draws runs' curves from their metrics.jsonl into one picture.

  python -m tests.bench.curves --out=curves.png NAME=RUN[,RUN...] ...

Runs of one name are drawn in one colour: each seed thin, their mean thick.
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # pylint: disable=wrong-import-position
import numpy as np  # pylint: disable=wrong-import-position

SMOOTH = 4


def read(run: str) -> list[dict]:
  """The lines of a run that belong to updates."""
  text = (pathlib.Path(run) / 'metrics.jsonl').read_text(encoding='utf-8')
  lines = [json.loads(line) for line in text.splitlines()]
  return [line for line in lines if 'reward/success' in line]


def column(lines: list[dict], tag: str) -> np.ndarray:
  """One tag over updates; undefined values are NaN."""
  values = [line.get(tag) for line in lines]
  return np.array([np.nan if v is None else v for v in values], float)


def smooth(values: np.ndarray) -> np.ndarray:
  """Mean of the last SMOOTH updates."""
  return np.array(
      [np.nanmean(values[max(0, i - SMOOTH + 1) : i + 1])
       for i in range(len(values))]
  )


def tokens_to(lines: list[dict], level: float) -> float | None:
  """Sampled tokens until the mean of SMOOTH batches reaches `level`."""
  success = smooth(column(lines, 'reward/success'))
  reached = np.flatnonzero(success >= level)
  reached = reached[reached >= SMOOTH - 1]
  if not reached.size:
    return None
  return float(column(lines, 'perf/sampled_tokens_total')[reached[0]])


def main() -> None:
  """Draws the picture and prints the tokens to 0.8 success of every run."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--out', required=True)
  parser.add_argument('arms', nargs='+', metavar='NAME=RUN[,RUN...]')
  options = parser.parse_args()
  figure, axes = plt.subplots(1, 2, figsize=(11, 4))
  colours = plt.get_cmap('tab10')
  for index, arm in enumerate(options.arms):
    name, _, runs = arm.partition('=')
    for number, run in enumerate(runs.split(',')):
      lines = read(run)
      tokens = column(lines, 'perf/sampled_tokens_total') / 1e3
      for axis, tag in zip(
          axes, ('reward/success', 'critic/explained_variance_scored')
      ):
        axis.plot(
            tokens,
            smooth(column(lines, tag)),
            color=colours(index),
            alpha=0.85,
            linewidth=1.4,
            label=name if not number else None,
        )
      print(f'{name}\t{run}\ttokens to 0.8: {tokens_to(lines, 0.8)}')
  for axis, title in zip(
      axes,
      (
          f'success of the training batch, mean of {SMOOTH}',
          'explained variance of the critic',
      ),
  ):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel('sampled tokens (thousand)')
    axis.set_ylim(-0.05, 1.0)
    axis.grid(alpha=0.3)
  axes[0].legend(loc='center right', fontsize=9)
  figure.tight_layout()
  figure.savefig(options.out, dpi=110)


if __name__ == '__main__':
  main()
