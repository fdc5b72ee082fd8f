"""The decode engine: JetStream's Engine API over the trainer's own model.

Slots are divided over the mesh's batch axes, heads over its tensor axis. A
slot stays on its shard: refill and decode run under `shard_map`, so that
nothing of the cache ever travels, and each shard branches by itself.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from rl_tpu.models import arranged
from rl_tpu.models import config as config_lib
from rl_tpu.models import kv_cache
from rl_tpu.sampler import contract
from rl_tpu.sampler import refill
from rl_tpu.sampler import state as state_lib
from rl_tpu.sampler import steps
from rl_tpu.sampler import types
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import placement
from rl_tpu.sharding import rules
from rl_tpu.types import programs as programs_lib

DecodeState = state_lib.DecodeState
_MIN_CAPACITY = 64


class PolicyEngine(contract.Engine):
  """Continuous batching for one decoder.

  The scheduler calls `refill` and `generate`; `prefill` and `insert` are the
  same work one step at a time, as the API has it.
  """

  def __init__(
      self,
      *,
      decoder_config: config_lib.DecoderConfig,
      mesh: jax.sharding.Mesh,
      slots: int,
      tokens_per_call: int,
      prefill_buckets: Sequence[int],
      prefill_rows: int,
      max_length: int,
      dtype: str = 'float32',
      max_support: int = 0,
  ):
    """Checks the settings; nothing is allocated or compiled yet.

    Args:
      decoder_config: the model.
      mesh: where to decode; it may be smaller than the trainer's.
      slots: sequences decoded at once.
      tokens_per_call: decode steps of one `generate`, K.
      prefill_buckets: padded prompt lengths, ascending; one compile each.
      prefill_rows: prompts read at once, over all shards.
      max_length: tokens of prompt and reply at most.
      dtype: of weights, activations and cache.
      max_support: ids of a truncated sampling support that come back with
        each token at most (R5); 0 brings none.

    Raises:
      ValueError: a setting that does not fit, by name.
    """
    mesh_lib.check_rows(mesh, slots, 'sampler.slots')
    for name, value in (
        ('sampler.slots', slots),
        ('sampler.tokens_per_call', tokens_per_call),
        ('sampler.prefill_rows', prefill_rows),
    ):
      if value < 1:
        raise ValueError(f'{name} must be at least 1, got {value}.')
    if not 1 < max_length <= decoder_config.max_length:
      raise ValueError(
          f'sampler: max_length = {max_length} must be 2 to the'
          f' {decoder_config.max_length} positions of the model.'
      )
    mixture, shards = decoder_config.mixture, mesh.shape['expert']
    if mixture is not None and mixture.num_experts % shards:
      raise ValueError(
          f'mesh.expert = {shards} does not divide the {mixture.num_experts}'
          f' experts of the model; use a divisor of {mixture.num_experts}.'
      )
    self.decoder_config = decoder_config
    self.tokens_per_call = tokens_per_call
    self.prefill_buckets = _check_buckets(prefill_buckets, max_length)
    self.max_length = max_length
    self.dtype = dtype
    self.max_support = max_support
    self.shards = mesh_lib.batch_shards(mesh)
    self.weight_shardings = weights_lib.shardings(decoder_config, mesh)
    self._config = weights_lib.served(decoder_config, mesh)
    self._slots = slots
    self._mesh = mesh
    self._chunk = max(1, min(prefill_rows, slots) // self.shards)
    self._compile()

  def _compile(self) -> None:
    """Makes the jitted functions; XLA runs at their first call."""
    config, mesh = self._config, self._mesh
    state, weights = self.state_shardings(), self.weight_shardings
    rows, whole = rules.rows_sharding(mesh), rules.replicated(mesh)
    of_weights = weights_lib.shard_specs(weights)
    local = functools.partial(
        jax.shard_map,
        mesh=mesh,
        axis_names=frozenset(mesh_lib.BATCH_AXES),
        check_vma=False,
    )
    generate = functools.partial(
        steps.generate,
        config=config,
        mesh=mesh,
        tokens_per_call=self.tokens_per_call,
        max_length=self.max_length,
        max_support=self.max_support,
    )
    # With several processes each of them reads all rows.
    result = rows if jax.process_count() == 1 else whole
    self._generate = jax.jit(
        local(
            generate,
            in_specs=(of_weights, rows.spec),
            out_specs=rows.spec,
        ),
        donate_argnums=1,
        in_shardings=(weights, state),
        out_shardings=(state, result),
    )
    fill = functools.partial(
        refill.run, config=config, mesh=mesh, chunk=self._chunk
    )
    self._refill = {
        continues: jax.jit(
            local(
                functools.partial(fill, continues=continues),
                in_specs=(of_weights, rows.spec, rows.spec),
                out_specs=rows.spec,
            ),
            donate_argnums=1,
            in_shardings=(weights, state, rows),
            out_shardings=state,
        )
        for continues in (False, True)
    }
    self._prefill = jax.jit(
        local(
            functools.partial(steps.prefill, config=config, mesh=mesh),
            in_specs=(of_weights, whole.spec, whole.spec),
            out_specs=whole.spec,
        ),
        in_shardings=(weights, whole, whole),
        out_shardings=whole,
    )
    change = functools.partial(jax.jit, out_shardings=state)
    self._insert = change(steps.insert, donate_argnums=0)
    self._release = change(steps.release, donate_argnums=0)
    self._resize = change(
        functools.partial(steps.resize, config=config),
        static_argnames='capacity',
    )
    self._init = change(
        lambda capacity: steps.init_state(
            config, self._slots, capacity, self.dtype
        ),
        static_argnames='capacity',
    )

  def state_shardings(self) -> DecodeState:
    """Shardings of the decode state."""
    config, mesh = self._config, self._mesh
    split = config.num_kv_heads % mesh.shape['tensor'] == 0
    spec = PartitionSpec(mesh_lib.BATCH_AXES, 'tensor' if split else None)
    layers = (NamedSharding(mesh, spec),) * config.num_layers
    cache = kv_cache.Cache(layers, layers)
    return DecodeState(cache, rules.rows_sharding(mesh))

  def capacity_for(self, length: int) -> int:
    """Smallest cache length in use that holds `length` positions.

    Attention costs what the cache holds, so the cache follows the longest
    live sequence: 64, 96, 128, 192, 256 and so on, one compile each.
    """
    size = _MIN_CAPACITY
    while size < length:
      size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, self.max_length)

  def bucket_for(
      self, insert: state_lib.Insert
  ) -> tuple[int, state_lib.Insert]:
    """Padded length of what is read of a prompt.

    Returns:
      The length, and the insert; it starts at 0 where continuing its slot's
      sequence saves nothing.
    """
    length = len(insert.prompt)
    fits = [size for size in self.prefill_buckets if length <= size]
    # With the tokens kept at a restart a prompt may be longer than any.
    whole = fits[0] if fits else self.max_length
    bucket = refill.bucket_for(insert, whole)
    if insert.start and bucket < whole:
      return bucket, insert
    return whole, insert._replace(start=0)

  def refill(
      self,
      params: arranged.Weights,
      decode_state: DecodeState,
      inserts: Sequence[state_lib.Insert],
      bucket: int,
  ) -> tuple[DecodeState, refill.Table]:
    """Reads prompts and puts them into slots, in one call.

    Args:
      params: the weights.
      decode_state: donated; it has room for every prompt, and for `bucket`
        tokens.
      inserts: requests that all start at 0, or all continue.
      bucket: from `bucket_for`.

    Returns:
      The new state, and what was read.
    """
    table = refill.table(
        inserts,
        bucket=bucket,
        slots=self._slots,
        shards=self.shards,
        chunk=self._chunk,
    )
    run = self._refill[inserts[0].start > 0]
    rows = placement.put(table.data, rules.rows_sharding(self._mesh))
    return placement.in_order(run(params, decode_state, rows)), table

  def release(
      self, decode_state: DecodeState, slots: Sequence[int]
  ) -> DecodeState:
    """Ends the requests of `slots`; the state is donated."""
    dead = np.zeros(self._slots, bool)
    dead[list(slots)] = True
    return self._release(decode_state, dead)

  def resize(self, decode_state: DecodeState, capacity: int) -> DecodeState:
    """Gives the cache another length."""
    return self._resize(decode_state, capacity=capacity)

  def compiled_generate(self, capacity: int) -> jax.stages.Compiled:
    """The compiled `generate`, to look into."""
    weights, state = self._abstract(capacity)
    return self._generate.lower(weights, state).compile()

  def programs(self) -> list[programs_lib.Program]:
    """Prefill of the longest prompts, and decoding in a full cache."""
    weights, state = self._abstract(self.max_length)
    bucket = self.prefill_buckets[-1]
    depth = refill.depth(self._slots // self.shards, self._chunk)
    table = jax.ShapeDtypeStruct(
        (self.shards * depth, bucket + refill.EXTRA),
        np.int32,
        sharding=rules.rows_sharding(self._mesh),
    )
    held = {'sampler': weights, 'cache': state.cache}
    return [
        programs_lib.Program(
            'prefill',
            self._refill[False],
            (weights, state, table),
            held,
            # One chunk of prompts a shard; a call repeats it as needed.
            tokens=self.shards * self._chunk * bucket,
            rows=bucket,
        ),
        programs_lib.Program(
            'decode',
            self._generate,
            (weights, state),
            held,
            tokens=self._slots * self.tokens_per_call,
            reads=self.tokens_per_call,
        ),
    ]

  def _abstract(self, capacity: int) -> tuple[arranged.Weights, DecodeState]:
    """Weights and state with their shardings, nothing allocated."""
    weights = weights_lib.weight_shapes(
        self.decoder_config, self._mesh, self.dtype
    )
    state = jax.eval_shape(lambda: self._init(capacity=capacity))
    return (
        rules.abstract(weights, self.weight_shardings),
        rules.abstract(state, self.state_shardings()),
    )

  # Below: the Engine API, 0.2.2, and the four names that 0.3 adds.

  def load_params(self, params: Any) -> arranged.Weights:
    """The trainer's parameters laid out for this engine, as a copy."""
    store = weights_lib.PolicyStore(
        decoder_config=self.decoder_config,
        weight_shardings=self.weight_shardings,
        dtype=self.dtype,
    )
    store.publish(0, params)
    return store.weights

  def init_decode_state(self, *, capacity: int | None = None) -> DecodeState:
    """An empty state; by default with room for `max_length` tokens."""
    return self._init(capacity=capacity or self.max_length)

  def prefill(
      self,
      *,
      params: arranged.Weights,
      existing_prefix: steps.Prefix | None = None,
      padded_tokens: jax.Array,
      true_length: int,
  ) -> steps.Prefix:
    """Reads one prompt; `padded_tokens` is [T]."""
    if existing_prefix is not None:
      raise ValueError('prefill: existing_prefix is not supported.')
    token_ST = np.asarray(padded_tokens)[None]
    return self.prefill_rows(params, token_ST, np.array([true_length]))

  def prefill_rows(
      self, params: arranged.Weights, token_ST: np.ndarray, length_S: np.ndarray
  ) -> steps.Prefix:
    """Reads several prompts padded to one length."""
    longest = min(token_ST.shape[1], self.max_prefill_length)
    if length_S.min() < 1 or length_S.max() > longest:
      raise ValueError(
          f'prompts have {length_S.min()} to {length_S.max()} tokens; 1 to'
          f' {longest} fit.'
      )
    return self._prefill(
        params, token_ST.astype(np.int32), length_S.astype(np.int32)
    )

  def prefill_multisampling(
      self, *, num_samples: int = 1, **kwargs: Any
  ) -> steps.Prefix:
    """`prefill`: its prefix may be inserted into any number of slots."""
    del num_samples
    return self.prefill(**kwargs)

  def insert(
      self,
      prefix: steps.Prefix,
      decode_state: DecodeState,
      slot: int,
      *,
      sampling_params: types.SamplingParams | None = None,
  ) -> DecodeState:
    """Puts the first row of a prefix into a slot; the state is donated."""
    each = None if sampling_params is None else [sampling_params]
    return self.bulk_insert(
        prefix, decode_state, [slot], sampling_params=each
    )

  def bulk_insert(
      self,
      prefix: steps.Prefix,
      decode_state: DecodeState,
      slots: Sequence[int],
      *,
      rows: Sequence[int] | None = None,
      sampling_params: Sequence[types.SamplingParams] | None = None,
  ) -> DecodeState:
    """Puts rows of a prefix into slots, by default the first into all.

    Args:
      prefix: from `prefill` or `prefill_rows`.
      decode_state: donated.
      slots: where to.
      rows: a row of the prefix for each slot.
      sampling_params: of each slot; by default T = 1 up to `max_length`.

    Returns:
      The new state.
    """
    default = types.SamplingParams(max_tokens=self.max_length)
    each = sampling_params or [default] * len(slots)
    control = state_lib.rows([state_lib.row(params) for params in each])
    return self._insert(
        decode_state,
        prefix,
        np.asarray(rows or [0] * len(slots), np.int32),
        np.asarray(slots, np.int32),
        control,
    )

  def generate(
      self, params: arranged.Weights, decode_state: DecodeState
  ) -> tuple[DecodeState, contract.ResultTokens]:
    """K tokens for every live slot; the state is donated."""
    decode_state, data = self._generate(params, decode_state)
    return decode_state, contract.result_tokens(data, self.tokens_per_call)

  def get_prefix_destination_sharding(self) -> NamedSharding:
    """Prefixes are whole on every device."""
    return rules.replicated(self._mesh)

  def get_tokenizer(self) -> contract.TokenizerParameters:
    """Empty: token ids go in and come out."""
    return contract.TokenizerParameters()

  def build_tokenizer(self, metadata: Any) -> Any:
    """Refused, see `get_tokenizer`."""
    raise ValueError('the engine has no tokenizer: token ids in, ids out.')

  @property
  def max_concurrent_decodes(self) -> int:
    """Slots."""
    return self._slots

  @property
  def samples_per_slot(self) -> int:
    """One."""
    return 1

  @property
  def max_prefill_length(self) -> int:
    """The longest prompt."""
    return self.prefill_buckets[-1]

  @property
  def mesh(self) -> jax.sharding.Mesh:
    """Where it decodes."""
    return self._mesh

  @property
  def colocated_cpus(self) -> None:
    """Not told apart."""
    return None

  @property
  def use_chunked_prefill(self) -> bool:
    """False."""
    return False

  @property
  def prefill_chunk_size(self) -> int:
    """The longest prompt, which is read at once."""
    return self.max_prefill_length


def _check_buckets(buckets: Sequence[int], max_length: int) -> tuple[int, ...]:
  buckets = tuple(buckets)
  if (
      not buckets
      or buckets[0] < 1
      or any(a >= b for a, b in zip(buckets, buckets[1:]))
      or buckets[-1] > max_length
  ):
    raise ValueError(
        f'sampler.prefill_buckets = {buckets} must ascend from at least 1 to'
        f' at most {max_length}, the longest sequence.'
    )
  return buckets
