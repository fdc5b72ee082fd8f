"""What a step looks like in figures: rewards, critic, policy, speed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
from absl import logging
from rich import console as console_lib
from rich import progress as progress_lib

from rl_tpu.advantages import normalise
from rl_tpu.assembly import update_figures
from rl_tpu.config import schema
from rl_tpu.evaluation import evaluate as evaluate_lib
from rl_tpu.learner import report as report_lib
from rl_tpu.learner import update as update_lib
from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import summary
from rl_tpu.metrics import transcripts as transcripts_lib
from rl_tpu.records import records
from rl_tpu.rollout import batching
from rl_tpu.text import tokenizer as tokenizer_lib

_KEPT_ESTIMATES = ('advantage', 'value', 'return', 'policy_mask')


@dataclasses.dataclass
class History:
  """What figures over several updates need.

  Attributes:
    held_out: per update, the critic's held-out scored tokens: (R, V).
    overflow: counters of L21, summed over the run.
  """

  held_out: list[tuple[np.ndarray, np.ndarray]] = dataclasses.field(
      default_factory=list
  )
  overflow: dict[str, float] = dataclasses.field(default_factory=dict)

  def pooled(self) -> float | None:
    """Held-out explained variance, pooled over the later half of the run."""
    later = self.held_out[len(self.held_out) // 2 :]
    if not later:
      return None
    target = np.concatenate([pair[0] for pair in later])
    value = np.concatenate([pair[1] for pair in later])
    if not target.size:
      return None
    return diagnostics.explained_variance(target, value)

  def count(self, name: str, value: float) -> None:
    """Adds to an overflow counter."""
    self.overflow[name] = self.overflow.get(name, 0.0) + value

  def summary(self) -> dict[str, Any]:
    """What the run's summary shows of it."""
    return {'held_out_explained_variance': self.pooled()}


def training(
    admitted: Sequence[summary.Judged],
    discarded: Sequence[records.Rollout],
    batch: batching.Batch,
    scored: update_lib.Scored,
    advantage_BT: np.ndarray,
    report: report_lib.Report,
    history: History,
) -> dict[str, float | None]:
  """All figures of an update except critic, age, speed and ledger."""
  values: dict[str, float | None] = {}
  values |= summary.reward_figures(admitted, discarded)
  values |= summary.rollout_figures(admitted, discarded)
  values |= _advantages(batch, scored, advantage_BT)
  values |= update_figures.figures(report, batch, history.count)
  return values


def _advantages(batch, scored, advantage_BT) -> dict[str, float | None]:
  joins = batch.segments.joins
  mask_BT = np.asarray(joins.policy_mask_BT)
  values = summary.advantage_figures(
      np.asarray(scored.estimates.advantage_BT)[mask_BT],
      np.asarray(advantage_BT)[mask_BT],
  )
  rewards_BT = np.asarray(joins.reward_BT, np.float64)
  included = int(np.asarray(joins.included_R).sum())
  if included:
    values['reward/total'] = float(rewards_BT.sum()) / included
  return values


def performance(
    seconds: Mapping[str, float],
    sampler: Mapping[str, float],
    batch: batching.Batch,
    compilations: int,
    sampled: int,
) -> dict[str, float]:
  """Seconds by phase, tokens per second, padding and recompilations."""
  total = sum(seconds.values())
  values = {f'perf/seconds/{name}': s for name, s in seconds.items()}
  values['perf/seconds_total'] = total
  values['perf/tokens_per_s'] = sampled / max(total, 1e-9)
  if seconds.get('rollout'):
    values['perf/generated_tokens_per_s'] = sampled / seconds['rollout']
  if seconds.get('update'):
    trained = batch.counts['real_tokens'] / seconds['update']
    values['perf/trained_tokens_per_s'] = trained
  values['perf/packing_waste'] = batch.counts['waste']
  values['perf/real_tokens'] = batch.counts['real_tokens']
  values['perf/padded_tokens'] = batch.counts['padded_tokens']
  values['perf/rows'] = batch.counts['rows']
  values['loss/policy_tokens'] = batch.counts['policy_tokens']
  values['loss/critic_tokens'] = batch.counts['critic_tokens']
  values['perf/compilations'] = compilations
  values['perf/memory_gib'] = _resident_gib()
  live, dead = sampler['generated_tokens'], sampler['dead_slot_steps']
  if live + dead:
    values['perf/slot_use'] = live / (live + dead)
  read, padding = sampler['prefill_tokens'], sampler['prefill_padding']
  if read + padding:
    values['perf/prefill_waste'] = padding / (read + padding)
  return values


def _resident_gib() -> float:
  return psutil.Process().memory_info().rss / 2**30


def evaluation(
    result: evaluate_lib.Result, training_temperature: float
) -> dict[str, float]:
  """Tags of one evaluation."""
  name = f'eval/t{result.temperature:g}'
  values = {
      f'{name}/success': result.success,
      f'{name}/score': result.mean_score,
      f'{name}/multi_segment': result.multi_segment,
      f'{name}/segments': result.segments,
      f'{name}/excluded': float(result.excluded),
  }
  short = None
  if result.temperature == training_temperature:
    short = 'eval/success'
  elif not result.temperature:
    short = 'eval/greedy'
  if short:
    values[short] = result.success
    values[f'{short}_low'] = result.low
    values[f'{short}_high'] = result.high
  return values


def histograms(
    writer: Any,
    step: int,
    batch: batching.Batch,
    scored: update_lib.Scored,
    advantage_BT: np.ndarray,
) -> None:
  """Distributions of advantage, value and target."""
  joins = batch.segments.joins
  mask_BT = np.asarray(joins.policy_mask_BT)
  writer.histogram(step, 'adv/histogram', np.asarray(advantage_BT)[mask_BT])
  writer.histogram(
      step, 'rollout/length_histogram', [r.num_tokens for r in batch.rollouts]
  )
  scores = [r.terminal_reward for r in batch.rollouts]
  writer.histogram(
      step, 'rollout/return_histogram', [s for s in scores if s is not None]
  )


def transcripts(
    writer: Any,
    step: int,
    estimates: Mapping[str, Mapping[str, Any]],
    rollouts: Sequence[records.Rollout],
    tokenizer: tokenizer_lib.Tokenizer,
) -> None:
  """The best and the worst rollout of the batch as Markdown."""
  scored = [r for r in rollouts if r.terminal_reward is not None and r.segments]
  if not scored:
    return
  best = max(scored, key=lambda r: r.terminal_reward)
  worst = min(scored, key=lambda r: r.terminal_reward)
  for name, rollout in (('best', best), ('worst', worst)):
    text = transcripts_lib.markdown(
        rollout, tokenizer.decode, estimates.get(rollout.rollout_id)
    )
    writer.text(step, f'sample/{name}', text)


def estimate_lines(
    batch: batching.Batch,
    scored: update_lib.Scored,
    advantage_BT: np.ndarray,
) -> dict[str, dict[str, Any]]:
  """Advantage, value, target and mask of every position, by rollout id.

  A number that is not finite is null: JSON has none.
  """
  arrays = (
      advantage_BT,
      scored.value_BT,
      scored.estimates.return_BT,
      np.asarray(batch.segments.joins.policy_mask_BT),
  )
  columns = {
      name: batch.unpack(array) for name, array in zip(_KEPT_ESTIMATES, arrays)
  }

  def rounded(values: np.ndarray) -> list[float | None]:
    values = np.round(np.asarray(values, float), 5)
    return np.where(np.isfinite(values), values, None).tolist()

  return {
      rollout.rollout_id: {
          'rollout_id': rollout.rollout_id,
          'segments': [
              {name: rounded(columns[name][r][k]) for name in columns}
              for k in range(len(rollout.segments))
          ],
      }
      for r, rollout in enumerate(batch.rollouts)
  }


def advantage_scale(
    advantage: schema.AdvantageConfig, running: normalise.Running
) -> dict[str, float]:
  """Tokens left unscaled for want of data (G17)."""
  values = {}
  if advantage.norm == 'source':
    values['adv/raw_tokens_total'] = float(
        sum(source.raw for source in running.values())
    )
  return values


def warn_unanchored(tasks: Sequence[str], count: int) -> None:
  """Names tasks whose value targets rest on the critic alone (T12)."""
  for task in tasks:
    logging.warning(
        'task %s: its last %d rollouts brought no outcome in use, so the'
        ' critic learns its value from itself; look at its budget.',
        task, count,
    )


class Progress:
  """One line per update, and a bar of rollouts where a person looks on."""

  def __init__(self, *, quiet: bool = False):
    """Shows nothing where `quiet`: another process shows the same."""
    self._console = console_lib.Console(stderr=True, quiet=quiet)
    self._bar = progress_lib.Progress(
        progress_lib.TextColumn('{task.description}'),
        progress_lib.BarColumn(),
        progress_lib.MofNCompleteColumn(),
        console=self._console,
        transient=True,
        disable=quiet or not self._console.is_terminal,
    )
    self._task = self._bar.add_task('rollouts', total=1)

  def __enter__(self) -> 'Progress':
    self._bar.start()
    return self

  def __exit__(self, *exception: Any) -> None:
    self._bar.stop()

  def on_rollout(self, ended: int, total: int) -> None:
    """Moves the bar."""
    self._bar.update(self._task, completed=ended, total=total)

  def note(self, text: str) -> None:
    """Prints a line."""
    self._console.print(text, highlight=False, soft_wrap=True)

  def on_resume(self, step: int) -> None:
    """Says where the run is taken up."""
    self._console.print(f'resumed after update {step}', highlight=False)

  def on_update(
      self, step: int, steps: int, values: Mapping[str, float | None]
  ) -> None:
    """Prints the update's line."""
    show = lambda tag: _number(values.get(tag))
    self._console.print(
        f'update {step}/{steps}'
        f'  {show("perf/train_seconds")} s'
        f'  success {show("reward/success")}'
        f'  reward {show("reward/raw")}'
        f'  EV {show("critic/explained_variance")}'
        f' (held out {show("critic/holdout/explained_variance_pooled")})'
        f'  entropy {show("policy/entropy")}'
        f'  tok/s {show("perf/generated_tokens_per_s")}',
        highlight=False,
        soft_wrap=True,
    )

  def on_evaluation(
      self,
      step: int,
      found: Mapping[str, tuple[float, float, float]],
      noise: float | None = None,
  ) -> None:
    """Prints an evaluation's line; `noise` is the verifier's own (D8)."""
    parts = [
        f'{name} {point:.3f} [{low:.3f}, {high:.3f}]'
        for name, (point, low, high) in found.items()
    ]
    floor = '' if noise is None else f'  verifier noise {noise:.3f}'
    self._console.print(
        f'held-out success after update {step}: ' + '  '.join(parts) + floor,
        highlight=False,
        soft_wrap=True,
    )


def _number(value: float | None) -> str:
  if value is None:
    return '-'
  return f'{value:.0f}' if abs(value) >= 100 else f'{value:.3f}'


