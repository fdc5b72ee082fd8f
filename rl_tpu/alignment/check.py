"""Do sampler and trainer give the same tokens the same probability (O4)?

Fixed sequences go through the trainer's forward pass, packed into rows, and
through the sampler's prefill and decode steps with the weights that it serves.
A difference means that ratios are wrong from the first update on: another
temperature, support, chat template, precision, or weights that did not arrive.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.alignment import score
from rl_tpu.metrics import diagnostics
from rl_tpu.models import arranged
from rl_tpu.models import config as config_lib
from rl_tpu.models import decode
from rl_tpu.models import decoder
from rl_tpu.types import batch as batch_lib

# Steps that are forced after a prefill, and prefills of a sequence at most.
_CHUNK = 16
_PREFILLS = 4
# Ids of the fixed supports, and the wrong temperature of the control.
_SUPPORT = 4
_WRONG = 2.0

Figures = dict[str, float | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """What is scored, and where the trainer's figure of each place stands.

  Attributes:
    rows: the sequences, packed.
    token_ST: a sequence a row for the sampler; one is there several times,
      with different prefills.
    start_S: last position that each row prefills.
    chunk: ids that are scored after it.
    valid_SC: bool, places within their sequence.
    row_SC: row of each place in `rows`.
    column_SC: its column there.
    position_SC: its position in the sequence.
    token_SC: its id.
  """

  rows: batch_lib.Rows
  token_ST: np.ndarray
  start_S: np.ndarray
  chunk: int
  valid_SC: np.ndarray
  row_SC: np.ndarray
  column_SC: np.ndarray
  position_SC: np.ndarray
  token_SC: np.ndarray


@dataclasses.dataclass(frozen=True)
class Result:
  """Figures of the check, d = log trainer - log sampler.

  Attributes:
    figures: max_abs, mean_abs, k1 and k3 over all places.
    support: the same under supports of a few ids (L16).
    by_position: the same by position, named by the power of two that a bucket
      begins at.
    limits: of max_abs and mean_abs; both have to hold.
    controls: figures under a setting that is wrong on purpose, by its name;
      these have to be over a limit.
    impossible: share of the tokens outside a wrong support that came out with
      log-probability -inf, as each of them has to.
  """

  figures: Figures
  support: Figures
  by_position: Mapping[int, Figures]
  limits: tuple[float, float]
  controls: Mapping[str, Figures]
  impossible: float

  @property
  def passed(self) -> bool:
    """Both limits hold, under a support too, and a wrong one is noticed."""
    return (
        _within(self.figures, self.limits)
        and _within(self.support, self.limits)
        and self.impossible == 1.0
    )

  @property
  def blind(self) -> list[str]:
    """Controls that the check did not tell from the right setting."""
    return [n for n, f in self.controls.items() if _within(f, self.limits)]

  def tags(self) -> Figures:
    """The figures under the names of the dashboard."""
    values = {f'policy/alignment_{n}': v for n, v in self.figures.items()}
    for position, found in self.by_position.items():
      for name, value in found.items():
        values[f'policy/alignment_position/{position}/{name}'] = value
    for name, found in self.controls.items():
      values[f'policy/alignment_control/{name}'] = found['mean_abs']
    for name, value in self.support.items():
      values[f'policy/alignment_support/{name}'] = value
    values['policy/alignment_impossible'] = self.impossible
    return values


def _within(figures: Figures, limits: tuple[float, float]) -> bool:
  # Not `figure > limit`: a figure that is no number is within no limit.
  return bool(
      figures['max_abs'] <= limits[0] and figures['mean_abs'] <= limits[1]
  )


def sequences(
    window: int, vocab: int, *, seed: int = 0
) -> list[np.ndarray]:
  """Fixed token ids: the whole window, a half, a quarter, an eighth of it."""
  rng = np.random.default_rng(seed)
  lengths = sorted({max(window >> k, 2) for k in range(4)}, reverse=True)
  return [rng.integers(0, vocab, n).astype(np.int32) for n in lengths]


def plan(window: int, vocab: int, *, seed: int = 0) -> Plan:
  """Packs the sequences for the trainer and lays them out for the sampler.

  Args:
    window: tokens of the longest sequence.
    vocab: ids below this are used.
    seed: of the ids.
  """
  ids = sequences(window, vocab, seed=seed)
  # The longest fills a row; the others together fit into the second.
  row = [0] + [1] * (len(ids) - 1)
  column = [0, *np.cumsum([0, *(len(x) for x in ids[1:])])[:-1].tolist()]
  lengths = np.asarray([len(x) for x in ids])
  sequence, start = _prefills(lengths)
  width = max(window, _CHUNK + 1)
  padded = np.stack([np.pad(x, (0, width - len(x)), mode='edge') for x in ids])
  position_SC = start[:, None] + 1 + np.arange(_CHUNK)
  place_SC = np.minimum(position_SC, width - 1)
  return Plan(
      rows=_rows(ids, row, column, window),
      token_ST=padded[sequence],
      start_S=start.astype(np.int32),
      chunk=_CHUNK,
      valid_SC=position_SC < lengths[sequence][:, None],
      row_SC=np.broadcast_to(
          np.asarray(row)[sequence][:, None], position_SC.shape
      ),
      column_SC=np.asarray(column)[sequence][:, None] + position_SC,
      position_SC=position_SC,
      token_SC=np.take_along_axis(padded[sequence], place_SC, axis=1),
  )


def _prefills(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Sequence and last prefilled position of every row of the sampler."""
  sequence, start = [], []
  for number, length in enumerate(lengths.tolist()):
    scored = length - 1
    count = min(_PREFILLS, -(-scored // _CHUNK))
    last = max(scored - _CHUNK, 0)
    places = np.unique(np.linspace(0, last, count).astype(int))
    sequence += [number] * len(places)
    start += places.tolist()
  return np.asarray(sequence), np.asarray(start)


def _rows(ids, row, column, window: int) -> batch_lib.Rows:
  shape = (max(row) + 1, window)
  token, position = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
  segment = np.full(shape, -1, np.int32)
  for number, (x, r, c) in enumerate(zip(ids, row, column)):
    token[r, c : c + len(x)] = x
    position[r, c : c + len(x)] = np.arange(len(x))
    segment[r, c : c + len(x)] = number
  return batch_lib.Rows(
      token_BT=token,
      position_BT=position,
      segment_BT=segment,
      action_mask_BT=segment >= 0,
      behaviour_logp_BT=np.zeros(shape, np.float32),
  )


def supports(token: np.ndarray, vocab: int) -> tuple[np.ndarray, np.ndarray]:
  """Fixed supports of a few ids: with the token, and without it.

  Args:
    token: [...] ids.
    vocab: ids below this are used.

  Returns:
    Two [..., M] arrays, -1 behind the ids.
  """
  size = min(_SUPPORT, vocab)
  right = (token[..., None] + np.arange(size)) % vocab
  # The token is the first of its support.
  gone = np.full((*token.shape, 1), -1)
  wrong = np.concatenate([right[..., 1:], gone], axis=-1)
  return right.astype(np.int32), wrong.astype(np.int32)


def run(
    params: decoder.Params,
    weights: arranged.Weights,
    config: config_lib.DecoderConfig,
    *,
    temperature: float,
    dtype: str,
    limits: tuple[float, float],
    window: int,
) -> Result:
  """Scores the fixed sequences both ways, and once more set wrong on purpose.

  Args:
    params: the trainer's.
    weights: what the sampler serves.
    config: the decoder's settings.
    temperature: of sampling and training.
    dtype: of activations.
    limits: of the largest and of the mean |d|.
    window: tokens of the longest sequence.
  """
  vocab = config.usable_vocab or config.vocab_size
  work = plan(window, vocab)
  # Every call has supports, so that each side is one program: all -1 is the
  # whole vocabulary.
  right_BTM, wrong_BTM = supports(work.rows.token_BT, vocab)
  right_SCM, _ = supports(work.token_SC, vocab)
  trained = lambda support: _trainer(
      params, work, config, temperature, dtype, support
  )
  sampled = lambda t, support: _sampler(weights, work, config, t, support)
  whole_SCM = np.full_like(right_SCM, -1)
  trainer = trained(np.full_like(right_BTM, -1))
  sampler = sampled(temperature, whole_SCM)
  drawn = sampled(temperature, right_SCM)
  position = work.position_SC[work.valid_SC]
  bucket = 1 << np.log2(position).astype(int)
  return Result(
      figures=diagnostics.alignment(sampler, trainer),
      support=diagnostics.alignment(drawn, trained(right_BTM)),
      by_position={
          lower: diagnostics.alignment(
              sampler[bucket == lower], trainer[bucket == lower]
          )
          for lower in np.unique(bucket).tolist()
      },
      limits=limits,
      controls={
          'temperature': diagnostics.alignment(
              sampled(_WRONG * temperature, whole_SCM), trainer
          ),
      },
      impossible=float(np.mean(np.isneginf(trained(wrong_BTM)))),
  )


def _trainer(
    params, work: Plan, config, temperature, dtype, support_BTM
) -> np.ndarray:
  rows = work.rows._replace(support_BTM=support_BTM)
  rows = jax.tree.map(jnp.asarray, rows)
  logp_BT = score.trainer_logp(params, rows, config, dtype, temperature)
  at = (work.row_SC[work.valid_SC], work.column_SC[work.valid_SC])
  return np.asarray(logp_BT)[at]


def _sampler(
    weights, work: Plan, config, temperature, support_SCM
) -> np.ndarray:
  logp_SC = decode.forced_scores(
      weights,
      jnp.asarray(work.token_ST),
      jnp.asarray(work.start_S),
      jnp.float32(temperature),
      config=config,
      chunk=work.chunk,
      support_SCM=jnp.asarray(support_SCM),
  )
  return np.asarray(logp_SC)[work.valid_SC]


def explain(result: Result) -> str:
  """One line on why a run must not update; empty if it may."""
  if result.passed:
    return ''
  if result.impossible != 1.0:
    return (
        'alignment: the trainer gives tokens outside their sampling support a'
        f' probability in {1.0 - result.impossible:.0%} of the places, so it'
        ' does not replay supports (O4); no update is made.'
    )
  largest, mean = result.limits
  found, where = result.figures, ''
  if _within(found, result.limits):
    found, where = result.support, ' under a sampling support'
  return (
      f'alignment: sampler and trainer give the same tokens{where}'
      f' log-probabilities that differ by {found["max_abs"]:.3g} at most and'
      f' {found["mean_abs"]:.3g} in the mean, over'
      f' alignment.max_abs={largest:g} or alignment.mean_abs={mean:g} (O4); no'
      ' update is made. Look at dtype, temperature and the weights that the'
      ' sampler serves; raise the limits only with a measurement.'
  )
