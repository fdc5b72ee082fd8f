"""What is planned is what runs: the same functions of the same arguments."""

import functools
import pathlib
import re
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
import jax

from rl_tpu import trainer
from rl_tpu.assembly import ahead
from rl_tpu.config import overrides
from rl_tpu.learner import learner as learner_lib
from rl_tpu.sampler import engine as engine_lib
from rl_tpu.sampler import weights as weights_lib
from rl_tpu.types import batch as batch_lib
from tests import tiny

# Attributes that hold a jitted function -> the program's name.
_LEARNER = {
    '_values': 'values',
    '_estimate': 'advantages',
    '_apply_actor': 'actor step',
    '_apply_critic': 'critic step',
}
_GRADIENTS = {
    '_actor_gradient': 'actor gradient',
    '_critic_gradient': 'critic gradient',
}


class Recorder:
  """Stands before a jitted function and keeps its first arguments."""

  def __init__(self, name, function, calls):
    self._name, self._function, self._calls = name, function, calls

  def __call__(self, *arguments, **keywords):
    if self._name not in self._calls:
      places = jax.tree.map(described, arguments)
      text = printed(self._function.trace(*arguments, **keywords))
      self._calls[self._name] = text, places
    return self._function(*arguments, **keywords)

  def __getattr__(self, name):
    return getattr(self._function, name)


def described(leaf):
  """Shape, dtype and, of what lies on devices, where."""
  sharding = None
  if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
    sharding = leaf.sharding
  if isinstance(sharding, jax.sharding.SingleDeviceSharding):
    sharding = None
  if sharding is not None:
    sharding = sharding.devices_indices_map(leaf.shape)
  return leaf.shape, str(leaf.dtype), sharding


def printed(traced) -> str:
  """The jaxpr without the addresses of closures."""
  return re.sub(r'0x[0-9a-f]+', '', str(traced.jaxpr))


def recording(cls, calls, change):
  """Patches a class so that its functions are recorded."""
  init = cls.__init__

  @functools.wraps(init)
  def recorded(self, *args, **kwargs):
    init(self, *args, **kwargs)
    change(self, calls)

  return mock.patch.object(cls, '__init__', recorded)


def of_learner(learner, calls):
  for attribute, name in _LEARNER.items():
    found = getattr(learner, attribute)
    setattr(learner, attribute, Recorder(name, found, calls))
  for attribute, name in _GRADIENTS.items():
    gradient = getattr(learner, attribute)
    setattr(
        learner,
        attribute,
        learner_lib.Gradient(
            gradient.start, Recorder(name, gradient.add, calls)
        ),
    )


def of_engine(engine, calls):
  def when_full(name, plain):
    """The cache grows with its sequences; planned is the full one."""
    full = Recorder(name, plain, calls)

    def call(weights, state, *table):
      is_full = state.cache.key[0].shape[2] == engine.max_length
      return (full if is_full else plain)(weights, state, *table)

    return call

  engine._generate = when_full('decode', engine._generate)
  engine._refill[False] = when_full('prefill', engine._refill[False])


def of_store(store, calls):
  store._arrange = Recorder('publish', store._arrange, calls)


class AheadTest(absltest.TestCase):

  def test_a_run_calls_what_was_planned(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    config = overrides.apply(
        tiny.experiment(tiny.model_folder(folder)),
        ['budgets.window=96', 'sampler.prefill_buckets=96'],
    )
    calls = {}
    with (
        recording(learner_lib.Learner, calls, of_learner),
        recording(engine_lib.PolicyEngine, calls, of_engine),
        recording(weights_lib.PolicyStore, calls, of_store),
    ):
      trainer.train(config, str(folder / 'run'))
    joins = calls['advantages'][1][0]
    rows, length = joins.reward_BT[0]
    planned = ahead.assemble(
        config,
        jax.devices(),
        sizes=batch_lib.Sizes(
            rows, length, joins.first_N[0][0], joins.final_R[0][0]
        ),
    )
    names = {program.name for program in planned.programs}
    self.assertEqual(names, set(calls))
    for program in planned.programs:
      with self.subTest(program.name):
        text, places = calls[program.name]
        found = program.function.trace(*program.arguments)
        self.assertEqual(printed(found), text)
        self.assertEqual(jax.tree.map(described, program.arguments), places)


if __name__ == '__main__':
  absltest.main()
