"""What a checkpoint holds, part by part, and which part may be missing (O7)."""

from collections.abc import Collection, Sequence
import hashlib
import json
from typing import Any

from rl_tpu.config import fields

# Arrays; a run has the last two where its critic is a network of its own.
ARRAYS = ('actor', 'actor_optimizer', 'critic', 'critic_optimizer')
# Without these nobody knows where the run was.
NEEDED = ('update', 'policy_version')
# What the host keeps, so that a resumed run goes on where it was.
HOST = (
    *NEEDED,
    'config',
    'config_hash',
    'cursor',
    'sampling',
    'seed',
    'reference_id',
    'reference_hash',
    'ledger',
    'unscored',
    'reward_statistics',
    'overflow',
    'warm_up',
    'alarms',
    'faults',
    'sampler_restarts',
    'gates',
    'queue',
    'training_s',
    'totals',
    'results',
    'metrics',
)
# What `--allow_partial` may name: it begins anew.
OPTIONAL = (*ARRAYS, *HOST[len(NEEDED) :])

_FLAG = '--allow_partial'


def digest(values: Any) -> str:
  """Of JSON values; the same after a way through a file."""
  text = json.dumps(json.loads(json.dumps(values)), sort_keys=True)
  return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def named(words: Sequence[str]) -> tuple[str, ...]:
  """The parts that the words of the flag name.

  Args:
    words: a part each, or several in a comma list.

  Raises:
    ValueError: there is no such part.
  """
  names = [name.strip() for word in words for name in word.split(',')]
  for name in names:
    if name not in OPTIONAL:
      raise ValueError(
          f'{_FLAG}={name}: a checkpoint has no such part; did you mean'
          f' {fields.nearest(name, OPTIONAL)}? (parts: {", ".join(OPTIONAL)})'
      )
  return tuple(dict.fromkeys(names))


def check_whole(
    checkpoint: str, missing: Collection[str], *, allowed: Collection[str]
) -> None:
  """Refuses a checkpoint without a part that it has to have.

  Args:
    checkpoint: for the message.
    missing: parts that it lacks.
    allowed: of these, what may begin anew.

  Raises:
    ValueError: a part is missing that is not allowed to.
  """
  needed = [name for name in missing if name in NEEDED]
  if needed:
    raise ValueError(
        f'{checkpoint} lacks {", ".join(needed)}: it was not written by this'
        ' version; start in another --workdir.'
    )
  refused = [name for name in missing if name not in allowed]
  if refused:
    raise ValueError(
        f'{checkpoint} lacks {", ".join(refused)}, in the shapes of these'
        f' settings; start in another --workdir, or go on without by'
        f' {_FLAG}={",".join(refused)}, which begins that part anew.'
    )
