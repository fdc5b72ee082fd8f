"""The alignment check at the start of a run and after every resume (O4)."""

from typing import Any

from absl import logging

from rl_tpu.alignment import check as check_lib
from rl_tpu.config import schema
from rl_tpu.models import config as model_config


def check(
    config: schema.ExperimentConfig,
    decoder: model_config.DecoderConfig,
    *,
    params: Any,
    weights: Any,
) -> check_lib.Result | None:
  """Compares the sampler's served weights with the trainer's parameters.

  Args:
    config: the experiment.
    decoder: settings of the model.
    params: the actor's.
    weights: what the sampler serves.

  Returns:
    What was found; None where the check is off.

  Raises:
    ValueError: sampler and trainer do not agree. One line.
  """
  if not config.alignment.enabled:
    return None
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
    raise ValueError(reason)
  for control in result.blind:
    logging.warning(
        'the alignment check does not tell a wrong %s from the right one: the'
        ' policy may be close to uniform, or alignment.max_abs and'
        ' alignment.mean_abs are too wide.',
        control,
    )
  return result
