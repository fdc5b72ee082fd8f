"""Supervised warm start: a scripted policy is recorded and imitated.

The demonstrations are rollouts like any other: the same sessions, the same
recorder, the same batching. Only the sampler is a script, and the actor's
loss is the negative log-likelihood of the action tokens.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from rich import console as console_lib

from rl_tpu.assembly import holding
from rl_tpu.assembly import parts
from rl_tpu.assembly import warm_start
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.metrics import writers


def run(
    config: schema.ExperimentConfig,
    workdir: str,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
  """Trains a new or given model on scripted rollouts and exports it.

  Args:
    config: an experiment with `sft` set.
    workdir: receives config.json, metrics and dashboards.
    stop: asked between steps; True ends the run in good order.
    on_start: called when everything is built and checked.

  Returns:
    The export's folder, steps done, last loss and seconds.

  Raises:
    ValueError: whatever cannot work; also that another process works in the
      directory.
  """
  with holding.held(workdir) as check:
    return _run(config, workdir, check, stop=stop, on_start=on_start)


def _run(config, workdir, check, *, stop, on_start) -> dict[str, Any]:
  start = warm_start.build(config)
  on_start()
  loading.save(config, os.path.join(workdir, 'config.json'))
  began = time.time()
  loss = float('nan')
  console = console_lib.Console(stderr=True)
  done = 0
  with writers.open_run(workdir) as writer:
    for step in range(1, config.sft.steps + 1):
      if stop():
        break
      stats = start.step(step)
      done = step
      loss = stats['loss/nll']
      check()
      writer.scalars(step, stats)
      if step % 50 == 0 or step == 1:
        console.print(
            f'step {step}/{config.sft.steps}  {time.time() - began:.0f} s'
            f'  loss {loss:.4f}',
            highlight=False,
        )
  folder = start.export(config.sft.out)
  start.close()
  return {
      'out': folder,
      'steps': done,
      'loss': loss,
      'seconds': time.time() - began,
  }
