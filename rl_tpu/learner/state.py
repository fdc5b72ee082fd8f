"""Everything that training changes on the device."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_tpu.learner import networks
from rl_tpu.models import lora


class Trainable(NamedTuple):
  """One network and its optimizer: float32 master parameters (L21)."""

  params: Any
  optimizer: Any


class TrainState(NamedTuple):
  """Actor and critic; the reference is separate, since nothing changes it.

  With low-rank adapters the two hold what is trained, adapters and heads, and
  share the rest; without adapters the base is also the reference.

  Attributes:
    actor: the policy; with a shared backbone the value head too.
    critic: backbone and value head; None where no critic is trained, or
      where it shares the actor's backbone (C10).
    base: frozen parameters below the adapters; None where all are trained.
  """

  actor: Trainable
  critic: Trainable | None
  base: Any | None = None

  @property
  def policy_params(self) -> Any:
    """What the sampler serves: the actor without a value head."""
    return networks.policy_params(lora.join(self.base, self.actor.params))

  @property
  def parts(self) -> dict[str, Any]:
    """What training changes, by the names that a checkpoint has for it.

    Without the base, which the model folder holds.
    """
    found = {
        'actor': self.actor.params,
        'actor_optimizer': self.actor.optimizer,
    }
    if self.critic is not None:
      found['critic'] = self.critic.params
      found['critic_optimizer'] = self.critic.optimizer
    return found

  def with_parts(self, parts: Mapping[str, Any]) -> 'TrainState':
    """This state with some of its parts replaced."""
    parts = self.parts | parts
    actor = Trainable(parts['actor'], parts['actor_optimizer'])
    critic = self.critic and Trainable(
        parts['critic'], parts['critic_optimizer']
    )
    return TrainState(actor, critic, self.base)

  @property
  def critic_base(self) -> Any | None:
    """The base in the form of a critic's parameters."""
    return None if self.base is None else {'backbone': self.base}

  @property
  def critic_params(self) -> Any | None:
    """The critic's parameters, wherever they are; None without a critic."""
    if self.critic is not None:
      return lora.join(self.critic_base, self.critic.params)
    if networks.HEAD in self.actor.params:
      whole = lora.join(self.base, self.actor.params)
      return networks.critic_view(whole)
    return None
