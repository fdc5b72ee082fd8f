"""Where the critic starts: constant, or as the model folder has it."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from rl_tpu.assembly import critic_start
from rl_tpu.assembly import opening
from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.learner import state as state_lib
from rl_tpu.models import huggingface
from rl_tpu.models import value_head
from tests import tiny

WIDTH = 16
HEAD = {
    'kernel': np.linspace(-1.0, 1.0, WIDTH, dtype=np.float32),
    'bias': np.float32(0.25),
}


def fresh(*, shared: bool = False, bins: int | None = None):
  """A state as the learner makes it, on one device."""
  shape = () if bins is None else (bins,)
  head = {'kernel': np.zeros((WIDTH, *shape)), 'bias': np.zeros(shape)}
  backbone = {'embed': {'embedding': np.zeros((3, WIDTH))}}
  params = {'backbone': backbone, 'value_head': head}
  actor = dict(backbone)
  if shared:
    actor['value_head'] = head
  make = lambda p: state_lib.Trainable(
      jax.tree.map(jax.numpy.asarray, p), 'moments'
  )
  return state_lib.TrainState(
      make(actor), None if shared else make(params)
  )


def backbone_of(params):
  """A model's parameters without the output layer."""
  return {name: leaf for name, leaf in params.items() if name != 'lm_head'}


class CriticStartTest(parameterized.TestCase):

  @parameterized.parameters(True, False)
  def test_a_head_of_the_folder_replaces_the_constant_one(self, shared):
    before = fresh(shared=shared)
    found = critic_start.apply(
        before, value_head.Pretrained(HEAD, None, None), schema.CriticConfig()
    )
    head = found.critic_params['value_head']
    jax.tree.map(np.testing.assert_array_equal, dict(head), HEAD)
    np.testing.assert_array_equal(
        found.critic_params['backbone']['embed']['embedding'], 0.0
    )
    holder = found.actor if shared else found.critic
    self.assertEqual(holder.optimizer, 'moments')
    self.assertEqual(found.policy_params, before.policy_params)

  def test_a_backbone_of_its_own_replaces_the_copy(self):
    backbone = {'embed': {'embedding': np.ones((3, WIDTH), np.float32)}}
    found = critic_start.apply(
        fresh(),
        value_head.Pretrained(HEAD, backbone, None),
        schema.CriticConfig(),
    )
    np.testing.assert_array_equal(
        found.critic.params['backbone']['embed']['embedding'], 1.0
    )
    np.testing.assert_array_equal(
        found.actor.params['embed']['embedding'], 0.0
    )

  @parameterized.parameters(
      (dict(bins=3), dict(head='hl_gauss', bins=3), None, r'\[16\].*\[16, 3\]'),
      (dict(shared=True), dict(sharing='shared_backbone'), {}, 'separate'),
  )
  def test_another_kind_of_head_is_refused(self, state, critic, backbone, line):
    with self.assertRaisesRegex(ValueError, line):
      critic_start.apply(
          fresh(**state),
          value_head.Pretrained(HEAD, backbone, None),
          schema.CriticConfig(**critic),
      )

  def test_another_range_of_the_bins_is_refused(self):
    head = {'kernel': np.zeros((WIDTH, 3)), 'bias': np.zeros(3)}
    critic = schema.CriticConfig(head='hl_gauss', bins=3, vmin=0.0, vmax=1.0)
    with self.assertRaisesRegex(ValueError, r'\(0.0, 2.0\).*critic.vmax'):
      critic_start.apply(
          fresh(bins=3), value_head.Pretrained(head, None, (0.0, 2.0)), critic
      )

  def test_a_run_starts_from_the_critic_of_its_folder(self):
    folder = self.create_tempdir().full_path
    model = tiny.model_folder(folder)
    settings, params = huggingface.load(model)
    other = jax.tree.map(lambda x: x + 1.0, backbone_of(params))
    value_head.save(
        model, settings, value_head.Pretrained(HEAD, other, None)
    )
    # The alignment check has nothing to do with the critic.
    config = overrides.apply(
        tiny.experiment(model), ['alignment.enabled=false']
    )
    with opening.open_run(config, folder + '/run') as run:
      critic = run.state.critic.params
      np.testing.assert_array_equal(
          critic['value_head']['kernel'], HEAD['kernel']
      )
      jax.tree.map(np.testing.assert_array_equal, critic['backbone'], other)
      jax.tree.map(
          np.testing.assert_array_equal, run.state.actor.params, params
      )


if __name__ == '__main__':
  absltest.main()
