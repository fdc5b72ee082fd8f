"""The alignment check at a start, a resume and a publication (O4)."""

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from rl_tpu.alignment import check as check_lib
from rl_tpu.assembly import gates as gates_lib
from rl_tpu.config import schema
from rl_tpu.models import config as model_config


def check(
    config: schema.ExperimentConfig,
    decoder: model_config.DecoderConfig,
    *,
    params: Any,
    weights: Any,
    gates: gates_lib.Gates,
    write: Callable[[Mapping[str, float | None]], None],
) -> None:
  """Compares the sampler's served weights with the trainer's parameters.

  Where the check is off, nothing is done.

  Args:
    config: the experiment.
    decoder: settings of the model.
    params: the actor's.
    weights: what the sampler serves.
    gates: closed behind SYNCED where the two do not agree.
    write: takes the figures, and the gate.

  Raises:
    ValueError: sampler and trainer do not agree. One line.
  """
  if not config.alignment.enabled:
    return
  result = check_lib.run(
      params,
      weights,
      decoder,
      temperature=config.sampling.temperature,
      dtype=config.model.dtype,
      limits=config.alignment.limits(config.model.dtype),
      window=config.budgets.window,
  )
  reason = check_lib.explain(result)
  if reason:
    gates.close_behind(gates_lib.Gate.SYNCED)
  write(result.tags() | gates.figures())
  if reason:
    raise ValueError(f'the gate ALIGNED is closed: {reason}')
  for control in result.blind:
    logging.warning(
        'the alignment check does not tell a wrong %s from the right one: the'
        ' policy may be close to uniform, or alignment.max_abs and'
        ' alignment.mean_abs are too wide.',
        control,
    )
