"""Gradients of GRPO, PPO and the critic are those of torch's autograd."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import numpy as safetensors_numpy

from rl_tpu.config import schema
from rl_tpu.learner import learner as learner_lib
from rl_tpu.losses import objective
from rl_tpu.models import critic as critic_lib
from rl_tpu.models import decoder
from rl_tpu.models import huggingface
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import batch as batch_lib
from tests.models import cases
from tests.models import parity
from tests.models import parity_models

_LIMIT = 1e-4
_LENGTHS = (parity_models.SHORT, parity_models.LONG)
_ROW = 80
_OBJECTIVES = {
    'grpo': dict(
        kl=schema.KlConfig(
            in_='loss', estimator='k3', coef=parity_models.KL_COEF
        ),
    ),
    'ppo': dict(
        loss=schema.LossConfig(entropy_coef=parity_models.ENTROPY_COEF)
    ),
    'critic': {},
}


def spread(name, golden) -> np.ndarray:
  """A token figure [1, T] of the row that packs both sequences."""
  parts = []
  for length in _LENGTHS:
    if name in ('base', 'reference'):
      part = np.append(0.0, golden[f'{name}_{length}'])
    else:
      part = parity_models.noise(f'{name} {length}', length)
    parts.append(part)
  flat = np.concatenate(parts)
  return np.pad(flat, (0, _ROW - len(flat)))[None].astype(np.float32)


def minibatch(name, golden) -> batch_lib.Minibatch:
  """Both sequences in one row, with the goldens' inputs."""
  rows = cases.rows(
      [parity_models.ids(length).tolist() for length in _LENGTHS], length=_ROW
  )
  masks = [parity_models.is_action(length) for length in _LENGTHS]
  mask = np.concatenate([*masks, np.zeros(_ROW - sum(_LENGTHS), bool)])[None]
  advantage = spread('advantage', golden)
  if name == 'grpo':  # Rewards 0 and 1, less their mean, over their spread.
    sign = np.where(np.arange(_ROW) < parity_models.SHORT, -1.0, 1.0)
    advantage = sign[None].astype(np.float32)
  weight = (mask / mask.sum()).astype(np.float32)
  return batch_lib.Minibatch(
      rows=rows._replace(
          action_mask_BT=mask, behaviour_logp_BT=spread('base', golden)
      ),
      advantage_BT=advantage,
      return_BT=spread('return', golden),
      value_BT=np.zeros_like(weight),
      base_logp_BT=spread('base', golden),
      reference_logp_BT=spread('reference', golden),
      policy_weight_BT=weight,
      critic_weight_BT=weight,
  )


class GradientTest(parameterized.TestCase):

  @parameterized.parameters(*parity_models.GRADIENTS)
  def test_L2_L4_L5_L6_gradients_equal_autograd(self, name):
    golden = dict(np.load(parity_models.GOLDEN / f'gradient_{name}.npz'))
    model = parity.load(parity_models.GRADIENTS[name])
    made = learner_lib.Learner(
        model.config,
        mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:1]),
        model=schema.ModelConfig(remat='none'),
        temperature=1.0,
        objective=objective.Settings(
            clip=schema.ClipConfig(*parity_models.CLIP), **_OBJECTIVES[name]
        ),
        gae_config=schema.GaeConfig(),
        critic=schema.CriticConfig(),
        actor_optimizer=schema.OptimizerConfig(),
        critic_optimizer=schema.OptimizerConfig(),
    )
    parts = [minibatch(name, golden)]
    if name == 'critic':
      params = critic_lib.init_params(model.params, head_bias=0.0)
      params['value_head']['kernel'] = jnp.asarray(
          parity_models.noise('value head', model.config.width)
      )
      gradient, _, _, loss = made.critic_sums(params, parts)
      found = {'value_head': np.asarray(gradient['value_head']['kernel'])}
      gradient = gradient['backbone']
    else:
      gradient, _, _, loss = made.actor_sums(model.params, parts)
      found = {}
    np.testing.assert_allclose(loss, golden['loss'], rtol=_LIMIT)
    found |= self.tensors(model, gradient)
    names = [key for key in golden if golden[key].shape == (5,)]
    self.assertGreater(len(names), 30)
    for key in names:
      wanted = golden[key]
      gap = np.abs(parity_models.summary(key, found.pop(key)) - wanted).max()
      # Against the gradient's norm, which is 0 of an expert that none took.
      self.assertLessEqual(gap, _LIMIT * wanted[0], key)
    for key, rest in found.items():  # What autograd says nothing about.
      np.testing.assert_array_equal(rest, 0.0, key)

  def tensors(self, model, gradient) -> dict[str, np.ndarray]:
    """The gradient under the names and in the layout of the files."""
    shapes = decoder.shapes_of(model.config)
    whole = {
        key: gradient.get(key) or jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, np.float32), shapes[key]
        )
        for key in shapes
    }
    folder = pathlib.Path(self.create_tempdir().full_path)
    huggingface.save(folder, model.config, whole)
    return safetensors_numpy.load_file(str(folder / 'model.safetensors'))


if __name__ == '__main__':
  absltest.main()
