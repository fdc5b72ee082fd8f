"""Tasks of any one reasoning-gym dataset, each a question to one reply.

Serves `rl_tpu.environments.single_turn` and
`rl_tpu.verifiers.reasoning_gym:DatasetVerifier`. Item i of seed s is drawn
from s + i, so two seeds give nearly the same list: questions are split between
train and eval by a hash of their text, never by seed.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import reasoning_gym

from rl_tpu.records import records
from rl_tpu.tasks import splits
from rl_tpu.text import hashing

SOURCE = 'reasoning_gym'


class DatasetTasks(Sequence):
  """The different questions of a dataset that belong to a split."""

  def __init__(
      self,
      split: str = 'train',
      *,
      dataset: str = 'chain_sum',
      size: int = 5000,
      seed: int = 0,
      settings: Mapping[str, Any] | None = None,
  ):
    """Draws the dataset once per process.

    Args:
      split: train or eval; no question is in both.
      dataset: name of a reasoning-gym dataset.
      size: items drawn, before the split and without repeated questions.
      seed: of the dataset.
      settings: the dataset's own, such as min_terms.

    Raises:
      ValueError: another split, a dataset or a setting that does not exist, or
        no question for the split.
    """
    splits.check(split)
    if size < 1:
      raise ValueError(f'tasks.settings.size = {size}: at least 1.')
    drawn = _draw(dataset, size, seed, json.dumps(settings or {}))
    self._entries = [e for e in drawn if splits.of_text(e['question']) == split]
    self._dataset, self._seed = dataset, seed
    if not self._entries:
      raise ValueError(
          f'tasks.settings.size = {size}: none of the {len(drawn)} different'
          f' questions of {dataset} is in the split {split}; draw more.'
      )

  def __len__(self) -> int:
    return len(self._entries)

  def __getitem__(self, index: int) -> records.Task:
    entry = self._entries[index]
    return records.Task(
        task_id=hashing.of_json([self._dataset, entry['question']]),
        source=SOURCE,
        family=self._dataset,
        seed=self._seed,
        payload={
            'messages': [{'role': 'user', 'content': entry['question']}],
            'answer': {'dataset': self._dataset, 'entry': entry},
        },
    )

  def indices_by_source(self) -> dict[str, range]:
    """Every task is of one source (D4)."""
    return {SOURCE: range(len(self))}


@functools.cache
def _draw(dataset: str, size: int, seed: int, settings: str):
  """Items with different questions, in the dataset's order."""
  try:
    drawn = reasoning_gym.create_dataset(
        dataset, size=size, seed=seed, **json.loads(settings)
    )
  except (TypeError, ValueError, AssertionError) as error:
    raise ValueError(
        f'tasks.settings.dataset = {dataset!r} with settings {settings}:'
        f' {error}.'
    ) from None
  found = {entry['question']: entry for entry in drawn}
  # As it comes back from a record or a worker: JSON.
  return json.loads(json.dumps(list(found.values()), default=str))
