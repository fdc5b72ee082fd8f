"""The JetStream Engine API: the only import site of jetstream.

google-jetstream 0.2.2 is installed without its dependencies. Its `engine_api`
imports two names of seqio that it never uses here; where seqio is absent a
stand-in serves that one import and is taken away again, so that no other
library meets it. `jetstream.core.orchestrator` is never imported: it rewires
the root logger.
"""

from collections.abc import Iterator
import contextlib
import importlib.util
import sys
import types
from typing import NamedTuple

import jax
import numpy as np

ENGINE_CONTRACT = '0.2.2'
INSTALL = f'pip install --no-deps google-jetstream=={ENGINE_CONTRACT}'


@contextlib.contextmanager
def _seqio_stand_in() -> Iterator[None]:
  """Two names of seqio for the length of one import."""
  if importlib.util.find_spec('seqio') is not None:
    yield
    return
  vocabularies = types.ModuleType('seqio.vocabularies')
  vocabularies.Vocabulary = type('Vocabulary', (), {})
  vocabularies.SentencePieceVocabulary = type(
      'SentencePieceVocabulary', (vocabularies.Vocabulary,), {}
  )
  seqio = types.ModuleType('seqio')
  seqio.vocabularies = vocabularies
  stand_in = {'seqio': seqio, 'seqio.vocabularies': vocabularies}
  sys.modules.update(stand_in)
  try:
    yield
  finally:
    for name in stand_in:
      sys.modules.pop(name, None)


try:
  with _seqio_stand_in():
    from jetstream.engine import engine_api
    from jetstream.engine import tokenizer_pb2
except ModuleNotFoundError as error:
  raise ModuleNotFoundError(
      f'the sampler needs JetStream ({error}); install it with: {INSTALL}',
      name=error.name,
  ) from error

Engine = engine_api.Engine
ResultTokens = engine_api.ResultTokens
TokenizerParameters = tokenizer_pb2.TokenizerParameters


class Columns(NamedTuple):
  """What one `generate` call says, one row per slot.

  Attributes:
    token: int32 [S, K].
    valid: [S, K], True where the token belongs to a request. The valid ones
      of a row come first.
    length: int32 [S], tokens of the request so far.
    logprob: float32 [S, K].
    finish: int32 [S], 0 or the code of the finish reason.
    support_count: int32 [S, K], see `types.support`.
    support: int32 [S, K, M], ids behind which -1 stands; M is 0 where no
      support is recorded.
  """

  token: jax.Array
  valid: jax.Array
  length: jax.Array
  logprob: jax.Array
  finish: jax.Array
  support_count: jax.Array
  support: jax.Array


def pack(columns: Columns) -> jax.Array:
  """One int32 array, so that one copy brings it to the host.

  [S, 3K + 2], and K (M + 1) columns more where supports are recorded.
  """
  bits = jax.lax.bitcast_convert_type(columns.logprob, jax.numpy.int32)
  as_int = lambda x: x.astype(jax.numpy.int32)
  return jax.numpy.concatenate(
      [
          columns.token,
          as_int(columns.valid),
          columns.length[:, None],
          bits,
          columns.finish[:, None],
          *_pack_support(columns),
      ],
      axis=1,
  )


def _pack_support(columns: Columns) -> list[jax.Array]:
  S, K, M = columns.support.shape
  if not M:
    return []
  return [columns.support_count, columns.support.reshape(S, K * M)]


def result_tokens(data: jax.Array, tokens_per_call: int) -> ResultTokens:
  """`pack`'s array as the API's type; columns behind `length` are ours."""
  K = tokens_per_call
  return ResultTokens(
      data=data,
      tokens_idx=(0, K),
      valid_idx=(K, 2 * K),
      length_idx=(2 * K, 2 * K + 1),
      samples_per_slot=1,
  )


def unpack(data: np.ndarray, tokens_per_call: int) -> Columns:
  """The columns of a host copy of `pack`'s array."""
  K = tokens_per_call
  S = len(data)
  rest = data[:, 3 * K + 2 :]
  M = max(0, rest.shape[1] // K - 1)
  return Columns(
      token=data[:, :K],
      valid=data[:, K : 2 * K] != 0,
      length=data[:, 2 * K],
      logprob=np.ascontiguousarray(data[:, 2 * K + 1 : 3 * K + 1]).view(
          np.float32
      ),
      finish=data[:, 3 * K + 1],
      support_count=rest[:, :K] if M else np.zeros((S, K), np.int32),
      support=rest[:, K:].reshape(S, K, M),
  )
