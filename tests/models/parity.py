"""Checks of a family's tiny model against its goldens, as largest gaps.

`python -m tests.models.parity` prints the table of all families; with a
folder, it also exports the models there for `make_parity check FOLDER`.
"""

import dataclasses
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from rl_tpu.models import actor
from rl_tpu.models import arranged
from rl_tpu.models import config as config_lib
from rl_tpu.models import decode
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.models import kv_cache
from tests.models import cases
from tests.models import parity_models

KINDS = tuple(parity_models.CONFIGS)
LONG, SHORT = parity_models.LONG, parity_models.SHORT
_ROW = 80

_prefill = jax.jit(decode.prefill, static_argnums=1)
_extend = jax.jit(decode.extend, static_argnums=1)
_arrange = jax.jit(arranged.arrange, static_argnums=1)


@dataclasses.dataclass(frozen=True)
class Model:
  """A family's tiny model as it was imported, and what it should give."""

  kind: str
  config: config_lib.DecoderConfig
  params: decoder.Params
  golden: dict[str, np.ndarray]

  @property
  def ids(self) -> np.ndarray:
    """The longer of the two sequences."""
    return parity_models.ids(LONG).astype(np.int32)

  @property
  def logp(self) -> np.ndarray:
    """The reference's log-probs of ids[1:]."""
    plain = cases.log_softmax(self.golden['long_logits'].astype(np.float64))
    return plain[np.arange(LONG - 1), self.ids[1:]]


def load(kind: str) -> Model:
  """Imports the family's folder."""
  with tempfile.TemporaryDirectory() as folder:
    parity_models.write_folder(kind, pathlib.Path(folder))
    config, params = huggingface.load(folder)
  golden = dict(np.load(parity_models.GOLDEN / f'{kind}.npz'))
  return Model(kind, config, params, golden)


@jax.jit(static_argnames='config')
def numbers(params, config, rows):
  """Logits and hidden states of packed rows, by the trainer's decoder."""
  hidden = decoder.hidden(
      params, config, rows.token_BT, rows.position_BT, rows.segment_BT
  )
  kernel = actor.output_kernel(params, config)
  return actor.logits(hidden, kernel, config), hidden


def trainer_gaps(model: Model) -> dict[str, float]:
  """Gaps of logits and hidden states at every position, row by row."""
  long, short = (parity_models.ids(size).tolist() for size in (LONG, SHORT))
  right = cases.rows([long], [short], [short, long], length=_ROW)
  left = cases.rows([long], [short], [], length=_ROW, left=_ROW - LONG)
  rows = jax.tree.map(lambda *x: jnp.concatenate(x), right, left)
  logits, hidden = map(
      np.asarray, numbers(model.params, model.config, rows)
  )
  pad = _ROW - LONG
  places = {
      'logits': (0, 0, 'long'),
      'right-padded': (1, 0, 'short'),
      'packed first': (2, 0, 'short'),
      'packed second': (2, SHORT, 'long'),
      'left-padded': (3, pad, 'long'),
      'left-padded short': (4, pad, 'short'),
  }
  out = {}
  for name, (row, start, label) in places.items():
    wanted = model.golden[f'{label}_logits']
    found = logits[row, start : start + len(wanted)]
    out[name] = float(np.abs(found - wanted).max())
  wanted = model.golden['long_hidden']
  out['hidden'] = float(np.abs(hidden[0, :LONG] - wanted).max())
  return out


def sampler_gap(model: Model) -> float:
  """Gap of log-probs by prefill and steps (O4)."""
  found = decode.forced_logprobs(model.params, model.config, model.ids)
  return float(np.abs(found - model.logp).max())


@jax.jit(static_argnums=1)
def _step(weights, config, token_S, position_S, cache):
  hidden_DS, cache = decode.step(weights, config, token_S, position_S, cache)
  return decode.logits(weights, config, hidden_DS), cache


def session_gap(model: Model) -> float:
  """The same over a session of three turns.

  A prompt of 5 is prefilled, then 6 tokens are sampled, 9 appended (in a
  chunk of 11), 8 sampled, 11 appended, and the rest sampled.
  """
  config, ids = model.config, model.ids
  weights = _arrange(model.params, config)
  cache = kv_cache.init(config, 1, LONG + 11)
  chunk = lambda start, size, length: jnp.asarray(
      np.resize(np.pad(ids[start : start + size], (0, length - size)), length)
  )[None]
  read = _prefill(weights, config, chunk(0, 5, 8), jnp.array([5]))
  put = lambda x, y: x.at[:, :, : y.shape[2]].set(y)
  cache = jax.tree.map(put, cache, read)
  position, gap = 5, 0.0
  for sampled, appended in ((6, 9), (8, 11), (LONG - 39, 0)):
    for now in range(position, position + sampled):
      at = jnp.array([now - 1])
      logits_VS, cache = _step(weights, config, ids[now - 1][None], at, cache)
      logp_V = cases.log_softmax(np.asarray(logits_VS[:, 0], np.float64))
      gap = max(gap, abs(logp_V[ids[now]] - model.logp[now - 1]))
    position += sampled
    if appended:
      # The last sampled token is read with what follows it.
      start = jnp.array([position - 1])
      token = chunk(position - 1, appended + 1, 12)
      length = jnp.array([appended + 1])
      cache = _extend(weights, config, token, start, length, cache)
      position += appended
  return float(gap)


def table(export: pathlib.Path | None) -> None:
  """Prints the largest gap of each check in each family."""
  for kind in KINDS:
    model = load(kind)
    gaps = trainer_gaps(model)
    gaps['sampler'] = sampler_gap(model)
    gaps['session'] = session_gap(model)
    if kind == KINDS[0]:
      print(f'{"":12s}', *(f'{name:>17s}' for name in gaps))
    print(
        f'{kind:12s}', *(f'{gap:17.1e}' for gap in gaps.values()), flush=True
    )
    if export is not None:
      huggingface.save(export / kind, model.config, model.params)


if __name__ == '__main__':
  table(pathlib.Path(sys.argv[1]) if sys.argv[1:] else None)
