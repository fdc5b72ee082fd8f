"""Everything that training changes on the device."""

from typing import Any, NamedTuple

from rl_tpu.learner import networks


class Trainable(NamedTuple):
  """One network and its optimizer: float32 master parameters (L21)."""

  params: Any
  optimizer: Any


class TrainState(NamedTuple):
  """Actor and critic; the reference is separate, since nothing changes it.

  Attributes:
    actor: the policy; with a shared backbone the value head too.
    critic: backbone and value head; None where no critic is trained, or
      where it shares the actor's backbone (C10).
  """

  actor: Trainable
  critic: Trainable | None

  @property
  def policy_params(self) -> Any:
    """What the sampler serves: the actor without a value head."""
    return networks.policy_params(self.actor.params)

  @property
  def critic_params(self) -> Any | None:
    """The critic's parameters, wherever they are; None without a critic."""
    if self.critic is not None:
      return self.critic.params
    if networks.HEAD in self.actor.params:
      return networks.critic_view(self.actor.params)
    return None
