"""The weights that the sampler serves, by policy version."""

import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from rl_tpu.models import arranged
from rl_tpu.models import attend
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.sharding import rules
from rl_tpu.types import programs as programs_lib


def served(
    config: config_lib.DecoderConfig, mesh: jax.sharding.Mesh
) -> config_lib.DecoderConfig:
  """The model as a mesh decodes it.

  Key heads that the tensor axis does not divide are there several times, so
  that each device has whole ones of its own: otherwise the compiler gathers
  the cache.
  """
  heads, tensor = config.num_heads, mesh.shape['tensor']
  if heads % tensor:
    return config  # No head is divided.
  repeats = attend.key_repeats(config.num_kv_heads, heads, tensor)
  return dataclasses.replace(
      config, num_kv_heads=config.num_kv_heads * repeats
  )


def shardings(
    config: config_lib.DecoderConfig, mesh: jax.sharding.Mesh
) -> arranged.Weights:
  """Where each weight lies for decoding.

  Not split over `fsdp`: a decode step reads every weight, and would gather it
  every time. Experts stay apart, as the tokens come to them.
  """

  def place_one(names: tuple[str, ...], leaf: jax.ShapeDtypeStruct):
    spec = rules.spec(names, leaf.shape, mesh, whole=('fsdp',))
    return NamedSharding(mesh, spec)

  is_names = lambda x: isinstance(x, tuple) and isinstance(x[0], str)
  return jax.tree.map(
      place_one,
      arranged.logical_axes(config),
      weight_shapes(config, mesh, 'float32'),
      is_leaf=is_names,
  )


def shard_specs(weight_shardings: arranged.Weights) -> arranged.Weights:
  """The same for a `shard_map` over the batch axes: without `tensor`."""
  return jax.tree.map(
      lambda sharding: PartitionSpec(
          *(None if axis == 'tensor' else axis for axis in sharding.spec)
      ),
      weight_shardings,
  )


def weight_shapes(
    config: config_lib.DecoderConfig, mesh: jax.sharding.Mesh, dtype: str
) -> arranged.Weights:
  """Shape and dtype of every weight, nothing allocated."""
  arrange = functools.partial(
      arranged.arrange, config=served(config, mesh), dtype=dtype
  )
  return jax.eval_shape(arrange, decoder.shapes_of(config))


class PolicyStore:
  """Holds the published weights and their version."""

  def __init__(
      self,
      *,
      decoder_config: config_lib.DecoderConfig,
      weight_shardings: arranged.Weights,
      dtype: str = 'float32',
      replace: bool = False,
  ):
    """Starts empty: nothing can be sampled before the first `publish`.

    Args:
      decoder_config: the model.
      weight_shardings: where to serve.
      dtype: of the weights.
      replace: the served weights are freed before the next ones are made, so
        that memory holds one copy. A publication that fails then leaves
        nothing to serve.
    """
    self._replaces = replace
    self._shapes = decoder.shapes_of(decoder_config)
    mesh = jax.tree.leaves(weight_shardings)[0].mesh
    self._devices, config = mesh.devices, served(decoder_config, mesh)
    self._arrange = jax.jit(
        lambda params: jax.tree.map(
            # A copy: an output that only renames an input would share its
            # buffer, which the trainer's next step donates.
            lambda x: jax.numpy.array(x, copy=True),
            arranged.arrange(params, config, dtype=dtype),
        ),
        out_shardings=weight_shardings,
    )
    self._version: int | None = None
    self._weights: arranged.Weights | None = None

  @property
  def version(self) -> int | None:
    """The version served; None before the first `publish`."""
    return self._version

  @property
  def weights(self) -> arranged.Weights:
    """The weights served.

    Raises:
      ValueError: nothing was published.
    """
    if self._weights is None:
      raise ValueError('the sampler has no weights yet: publish some first.')
    return self._weights

  def publish(self, version: int, params: decoder.Params) -> None:
    """Copies, casts and reshards parameters, then serves them.

    The copy has arrived when this returns: the caller may donate `params`. If
    anything fails, the old version goes on being served, unless it was to be
    freed first; parameters of another model are refused before that.

    Args:
      version: of the policy, 0 or more.
      params: the trainer's, with any sharding.

    Raises:
      ValueError: parameters of another model, the first one named.
    """
    if version < 0:
      raise ValueError(f'a policy version is 0 or more, got {version}.')
    check_params(params, self._shapes)
    if self._replaces and self._weights is not None:
      jax.tree.map(lambda leaf: leaf.delete(), self._weights)
      self._weights = self._version = None
    weights = jax.block_until_ready(self._arrange(self._reach(params)))
    self._weights, self._version = weights, version

  def drop(self) -> None:
    """Serves nothing until the next `publish`."""
    self._weights = self._version = None

  def program(self, params: decoder.Params) -> programs_lib.Program:
    """The copy that `publish` makes, of abstract parameters."""
    held = {'actor': params}
    if self._replaces:
      held['sampler'] = ()  # Freed by then.
    return programs_lib.Program('publish', self._arrange, (params,), held)

  def _reach(self, params: decoder.Params) -> decoder.Params:
    """Brings parameters to the sampler's devices if they are on others."""
    here = set(self._devices.flat)
    if all(x.sharding.device_set == here for x in jax.tree.leaves(params)):
      return params
    mesh = jax.sharding.Mesh(self._devices, rules.mesh_lib.AXES)
    return jax.device_put(params, rules.replicated(mesh))


def check_params(params: Any, shapes: Any) -> None:
  """Raises ValueError where `params` do not have the shapes asked for."""
  name_of = lambda path: '/'.join(str(key.key) for key in path)
  flat = jax.tree_util.tree_flatten_with_path
  found = {name_of(path): leaf.shape for path, leaf in flat(params)[0]}
  wanted = {name_of(path): leaf.shape for path, leaf in flat(shapes)[0]}
  for name in sorted(found.keys() | wanted.keys()):
    if found.get(name) != wanted.get(name):
      raise ValueError(
          f'published parameter {name} has shape {found.get(name)}, the'
          f' sampler was built for {wanted.get(name)}.'
      )
