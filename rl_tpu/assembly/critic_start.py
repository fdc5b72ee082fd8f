"""The critic's start: of the model folder, where it holds a critic."""

import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.learner import networks
from rl_tpu.learner import state as state_lib
from rl_tpu.models import value_head
from rl_tpu.sharding import placement


def apply(
    state: state_lib.TrainState,
    pretrained: value_head.Pretrained | None,
    critic: schema.CriticConfig,
) -> state_lib.TrainState:
  """Puts a pretrained head, and a backbone of its own, into a fresh state.

  Args:
    state: fresh: the head is constant, a critic's backbone a copy.
    pretrained: what the model folder holds; None leaves the state as it is.
    critic: its settings.

  Raises:
    ValueError: a head of another kind than the settings ask for.
  """
  if pretrained is None or state.critic_params is None:
    return state
  _check(state, pretrained, critic)
  put = lambda new, old: jax.tree.map(
      lambda n, o: placement.put(jnp.asarray(n), o.sharding), new, old
  )
  holder = state.actor if state.critic is None else state.critic
  params = dict(holder.params)
  params[networks.HEAD] = put(dict(pretrained.head), params[networks.HEAD])
  if pretrained.backbone is not None:
    params['backbone'] = put(pretrained.backbone, params['backbone'])
  holder = holder._replace(params=params)
  if state.critic is None:
    return state._replace(actor=holder)
  return state._replace(critic=holder)


def _check(state, pretrained, critic) -> None:
  name = f'model.path: its {value_head.FILE}'
  wanted = state.critic_params[networks.HEAD]['kernel'].shape
  found = pretrained.head['kernel'].shape
  if found != wanted:
    raise ValueError(
        f'{name} has a kernel of shape {list(found)}, critic.head ='
        f' {critic.head!r} needs {list(wanted)}; set critic.head and'
        ' critic.bins as it was trained with, or remove the file.'
    )
  asked = (critic.vmin, critic.vmax) if len(wanted) == 2 else None
  if pretrained.value_range != asked:
    raise ValueError(
        f'{name} is for values in {pretrained.value_range}, critic.vmin and'
        f' critic.vmax are {critic.vmin} and {critic.vmax}; set them as it was'
        ' trained with.'
    )
  if pretrained.backbone is not None and state.base is not None:
    raise ValueError(
        f'model.lora.rank: the {value_head.FILE} of model.path belongs to a'
        ' backbone of its own, and adapters share one base; use'
        ' model.lora.rank=0, or remove the file.'
    )
  if pretrained.backbone is not None and state.critic is None:
    raise ValueError(
        f"critic.sharing = 'shared_backbone': the {value_head.FILE} of"
        ' model.path belongs to a backbone of its own; use'
        ' critic.sharing=separate, or remove the file.'
    )
