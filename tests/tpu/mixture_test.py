"""What the TPU compiler makes of experts that are divided over a mesh."""

import functools
import math
import re

from absl.testing import absltest
import jax
import jax.numpy as jnp

from rl_tpu.config import schema
from rl_tpu.learner import networks as networks_lib
from rl_tpu.losses import objective
from rl_tpu.models import config as config_lib
from rl_tpu.models import decoder
from rl_tpu.planning import topology
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
from rl_tpu.types import batch as batch_lib

MODEL = config_lib.DecoderConfig(
    vocab_size=512,
    width=256,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    head_width=128,
    mlp_width=256,
    max_length=512,
    mixture=config_lib.MixtureConfig(
        num_experts=16, experts_per_token=4, expert_width=1024
    ),
)
ROWS, LENGTH, SLOTS = 8, 512, 16
# One matrix of a device's experts: a fourth of them, and half of each.
HELD = (16 // 4) * 256 * (1024 // 2)


@functools.cache
def mesh() -> jax.sharding.Mesh:
  _, devices = topology.describe('v5e:4x4')
  sizes = schema.MeshConfig(data=1, fsdp=2, expert=4, tensor=2)
  return mesh_lib.make_mesh(sizes, devices)


def sent(text: str, kind: str) -> list[int]:
  """Numbers in the largest result of every collective of the kind."""
  found = re.findall(rf'= (.*?) {kind}(?:-start)?\(', text)
  numbers = lambda shape: math.prod(int(n) for n in shape.split(',') if n)
  return [
      max(numbers(shape) for shape in re.findall(r'\[([\d,]*)\]', result))
      for result in found
  ]


@functools.cache
def gradient() -> str:
  """The compiled gradient of the actor's loss."""
  networks = networks_lib.Networks(
      decoder=MODEL,
      model=schema.ModelConfig(dtype='bfloat16', remat='layer'),
      temperature=1.0,
      objective=objective.Settings(),
      critic=schema.CriticConfig(),
      mesh=mesh(),
  )
  shapes = decoder.shapes_of(MODEL)
  places = rules.param_shardings(decoder.logical_axes(MODEL), mesh(), shapes)
  params = jax.tree.map(
      lambda leaf, place: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=place
      ),
      shapes,
      places,
  )
  array = lambda dtype: jax.ShapeDtypeStruct(
      (ROWS, LENGTH), dtype, sharding=rules.rows_sharding(mesh())
  )
  number, ids = array(jnp.float32), array(jnp.int32)
  rows = batch_lib.Rows(ids, ids, ids, array(jnp.bool), number)
  step = jax.jit(
      jax.value_and_grad(networks.actor_loss, has_aux=True),
      out_shardings=(None, places),
  )
  part = batch_lib.Minibatch(rows, *[number] * 7)
  return step.lower(params, part).compile().as_text()


class MixtureTest(absltest.TestCase):

  def test_the_gradient_gathers_experts_over_fsdp_only(self):
    sizes = sent(gradient(), 'all-gather')
    self.assertIn(HELD, sizes)
    self.assertLessEqual(max(sizes), HELD)

  def test_gradients_are_not_summed_for_every_expert_of_a_token(self):
    # Over `tensor`, where a round has this many rows of its shards' tokens.
    rows = ROWS // 8 * LENGTH // 2 * 4 * MODEL.mixture.experts_per_token
    self.assertGreater(rows * MODEL.width, HELD)
    self.assertLessEqual(max(sent(gradient(), 'all-reduce')), HELD)

  def test_a_decode_step_gathers_tokens_and_no_weights(self):
    engine = engine_lib.PolicyEngine(
        decoder_config=MODEL,
        mesh=mesh(),
        slots=SLOTS,
        tokens_per_call=2,
        prefill_buckets=(128,),
        prefill_rows=8,
        max_length=LENGTH,
        dtype='bfloat16',
    )
    text = engine.compiled_generate(capacity=LENGTH).as_text()
    sizes = sent(text, 'all-gather')
    # Tokens of the four shards that have experts of each other.
    tokens = SLOTS // 2 * MODEL.width
    self.assertIn(tokens, sizes)
    self.assertLessEqual(max(sizes), tokens)


if __name__ == '__main__':
  absltest.main()
