"""Fixed recorded rollouts: several segments, gaps, rewards, odd lengths."""

import numpy as np

from rl_tpu.records import records
from rl_tpu.rollout import recorder
from rl_tpu.types import budget
from rl_tpu.types import termination as term

SAMPLING = records.Sampling(1.0, 0, 1.0, 0.0, (1,), 0, 'b', 'float32', 't', 'k')


def rollouts(
    vocab: int, count: int = 14, seed: int = 0
) -> list[records.Rollout]:
  """`count` rollouts of one to four segments of 12 to 40 tokens."""
  rng = np.random.default_rng(seed)
  return [_rollout(rng, vocab, number) for number in range(count)]


def _rollout(rng, vocab: int, number: int) -> records.Rollout:
  name = f'r{number}'
  writer = recorder.Recorder(name, 'env@0', {'step': 1.0})
  ids = lambda n: rng.integers(2, vocab, n).astype(np.int32)
  turn = 0
  segments = int(rng.integers(1, 5))
  for index in range(segments):
    writer.open(ids(int(rng.integers(3, 9))))
    for _ in range(int(rng.integers(1, 3))):
      count = int(rng.integers(3, 9))
      writer.sampled(
          ids(count),
          rng.normal(-3.2, 0.3, count),
          np.zeros(count, np.int32),
          turn_id=turn,
          sampling=SAMPLING,
      )
      turn += 1
      if rng.random() < 0.5:
        writer.reward('step', float(rng.normal()))
      writer.observe(ids(int(rng.integers(0, 6))))
    if index + 1 < segments:
      writer.cut(term.Cut.COMPACTION, term.CutCause.TEMPLATE)
  return rollout(
      writer,
      name,
      task_id=f'task{number % 5}',
      terminal_reward=float(rng.random()),
      solved=bool(rng.random() < 0.5),
  )


def rollout(
    writer: recorder.Recorder, name: str, **fields
) -> records.Rollout:
  """What a recorder holds as a rollout that the policy ended."""
  kind = term.Termination.POLICY_STOP
  parts = writer.close(kind)
  return records.Rollout(
      rollout_id=name,
      source='s',
      task_family='f',
      group_id=None,
      termination=kind,
      abort_cause=None,
      fault_cause=None,
      reward_components=dict(writer.components),
      env_name='env',
      env_version='1',
      env_seed=0,
      env_snapshot='env@0',
      permissions_hash='p',
      tool_set_hash='t',
      verifier_id='v',
      verifier_version='1',
      verifier_input_hash='h',
      budgets=budget.Budget(),
      num_segments=len(parts),
      segments=parts,
      **fields,
  )
