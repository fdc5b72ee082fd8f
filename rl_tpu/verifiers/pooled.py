"""Runs a verifier in worker processes under a wall limit.

A verifier that hangs, crashes or returns no finite number costs its own
rollout and nothing else: the future raises `VerifierFault`.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_tpu.config import loading
from rl_tpu.isolation import errors
from rl_tpu.isolation import pool
from rl_tpu.isolation import process
from rl_tpu.types import termination as term
from rl_tpu.verifiers import protocol


class PooledVerifier:
  """A verifier by import path, behind futures."""

  def __init__(
      self,
      target: str,
      settings: Mapping[str, Any],
      *,
      workers: int = 1,
      timeout_s: float = 10.0,
      startup_s: float = process.STARTUP_S,
      memory_gib: float | None = None,
      pass_variables: Sequence[str] = (),
  ):
    """Builds it once here, which checks the settings, and starts workers.

    Args:
      target: import path, `module:Class`.
      settings: keyword arguments of the class.
      workers: processes.
      timeout_s: wall limit of one score.
      startup_s: limit of a worker's start.
      memory_gib: address space of a worker; None is no limit.
      pass_variables: names of environment variables that they are given.

    Raises:
      ValueError: a target or a setting that does not exist.
    """
    built = loading.construct(target, settings, setting='verifier')
    loading.check_has(built, 'verifier_id', setting='verifier')
    self._verifier_id = str(built.verifier_id)
    self._version = str(built.version)
    # Optional: a verifier that says nothing may differ from itself (D8).
    self._deterministic = bool(getattr(built, 'deterministic', False))
    # Optional, too: without it every task is taken as it is (K50).
    self.check_payload: Callable[[Mapping[str, Any]], None] | None = getattr(
        built, 'check_payload', None
    )
    self._target = target
    self._settings = json.dumps(dict(settings), sort_keys=True)
    self._timeout_s = timeout_s
    self._pool = pool.CallPool(
        workers,
        preload=(target.partition(':')[0],),
        startup_s=startup_s,
        memory_gib=memory_gib,
        pass_variables=pass_variables,
    )

  @property
  def verifier_id(self) -> str:
    """Of the verifier."""
    return self._verifier_id

  @property
  def version(self) -> str:
    """Of the verifier."""
    return self._version

  @property
  def deterministic(self) -> bool:
    """Equal evidence always has the same score."""
    return self._deterministic

  def score_async(self, evidence: Mapping[str, Any]) -> '_Scoring':
    """Starts one score; the evidence travels as JSON text.

    Raises:
      ValueError: evidence that is not JSON.
    """
    text = json.dumps(evidence, allow_nan=False)
    call = self._pool.submit(
        'rl_tpu.verifiers.pooled:score_here',
        (self._target, self._settings, text),
        timeout_s=self._timeout_s,
    )
    return _Scoring(call)

  def close(self) -> None:
    """Ends the workers."""
    self._pool.close()


class _Scoring:
  """A score on its way."""

  def __init__(self, call: pool.Call):
    self._call = call

  def done(self) -> bool:
    """True once `result` returns at once."""
    return self._call.done()

  def result(self) -> protocol.Score:
    """The score.

    Raises:
      protocol.VerifierFault: there is none.
    """
    try:
      score = self._call.result()
    except errors.WorkerError as error:
      cause = error.fault_cause or term.FaultCause.VERIFIER
      raise protocol.VerifierFault(str(error), cause) from error
    if not isinstance(score, protocol.Score):
      raise protocol.VerifierFault(
          f'the worker returned a {type(score).__name__}, no Score.'
      )
    return score


@functools.cache
def _built(target: str, settings: str) -> protocol.Verifier:
  return loading.construct(target, json.loads(settings), setting='verifier')


def score_here(target: str, settings: str, evidence: str) -> protocol.Score:
  """Scores in this process; what the workers run.

  Raises:
    ValueError: a value that is not finite, which is no score.
  """
  score = _built(target, settings).score(json.loads(evidence))
  value = float(score.value)
  if not math.isfinite(value):
    raise ValueError(f'the verifier returned {value}, which is no score.')
  return protocol.Score(value, bool(score.solved), dict(score.components))
