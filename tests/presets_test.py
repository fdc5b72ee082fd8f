"""Each preset: its page, and what its settings change in a step."""

import ast
import dataclasses
import functools
import pathlib
import re
import types
from typing import Any

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import policy as policy_lib
from rl_tpu.assembly import run
from rl_tpu.config import loading
from rl_tpu.config import schema
from rl_tpu.config import validation
from rl_tpu.metrics import phases
from rl_tpu.rollout import admission
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import batch as batch_lib
from tests import group_cases
from tests.learner import small

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'experiments'
MAIN = 'arithmetic_tools_ppo'
ROWS = 8

# Preset -> what it departs from, and what of a step that changes: the traced
# programs of actor, critic and estimator, what they are fed with, and how often
# the critic's runs.
PRESETS = {
    'ppo': (MAIN, {'estimate', 'advantage', 'return', 'passes'}),
    'sao': (MAIN, {'actor', 'critic', 'estimate', 'advantage'}),
    'vapo': (MAIN, {'actor', 'estimate', 'advantage'}),
    'compaction_rl': (MAIN, {'estimate', 'advantage'}),
    # There is no critic: nothing is estimated.
    'grpo': (
        MAIN,
        {'critic', 'estimate', 'advantage', 'return', 'weight', 'passes'},
    ),
    'dr_grpo': ('grpo', {'advantage', 'weight'}),
    'rloo': ('grpo', {'advantage', 'weight'}),
    'gspo': ('grpo', {'actor'}),
    'gigpo': ('grpo', {'advantage'}),
    'process_grpo': ('grpo', {'advantage'}),
}


def load(name: str) -> schema.ExperimentConfig:
  return loading.load_experiment(FOLDER / f'{name}.py')


def recorded(config) -> list:
  """Four members of a task; two more tasks that scored alike."""
  turn = group_cases.Turn
  shapes = (
      ((3, 0.0, 's'), (2, 1.0, 't'), (4, 0.0, 'u')),
      ((3, 1.0, 's'), (5, 1.0, 't')),
      ((2, 0.0, 's'), (2, 0.0, 'v'), (3, 1.0, 'u')),
      ((4, 1.0, 's'), (1, 0.0, 't'), (2, 1.0, 'u')),
  )
  out = []
  for task in range(3):
    for index, shape in enumerate(shapes):
      made = group_cases.member(
          f'{task}-{index}',
          [turn(*each) for each in shape],
          [1.0, 0.0, 0.0, 1.0][index] if task else 0.25 * index,
          cuts=[4],
          task_id=f't{task}',
          group_id=f'g{task}' if config.group.size > 1 else None,
      )
      step = made.reward_components['step']
      weight = config.reward.weights.get('sub_answer', 0.0)
      segments = [
          dataclasses.replace(s, reward=weight * s.reward)
          for s in made.segments
      ]
      out.append(
          dataclasses.replace(
              made, reward_components={'sub_answer': step}, segments=segments
          )
      )
  return out


@functools.cache
def step(name: str) -> dict[str, Any]:
  """One step of an experiment on recorded rollouts, traced."""
  config = load(name)
  config = dataclasses.replace(
      config,
      batching=dataclasses.replace(
          config.batching, row_length=32, rows_per_microbatch=ROWS,
          minibatches=1,
      ),
      model=dataclasses.replace(config.model, path=''),
  )
  learner = policy_lib.build_learner(
      config, small.MODEL, mesh_lib.make_mesh(schema.MeshConfig())
  )
  admitted = admission.admit(
      recorded(config),
      termination=config.termination,
      data=config.data,
      reward=config.reward,
      group=config.group,
      estimator=config.advantage.estimator,
      row_length=32,
  )
  self = types.SimpleNamespace(
      clock=phases.PhaseClock(), config=config, running={}, version=0
  )
  batch = run.TrainingRun.pack(self, admitted)
  joins, rows = batch.segments.joins, batch.segments.rows
  values_BT = np.sin(np.arange(joins.reward_BT.size, dtype=np.float32))
  heads = (values_BT.reshape(joins.reward_BT.shape),)
  estimate = lambda: learner.estimate(joins, rows.position_BT, heads, None)
  estimates, _ = jax.tree.map(np.asarray, estimate())
  advantage_BT = run.TrainingRun.normalise(
      self, batch, types.SimpleNamespace(estimates=estimates)
  )
  state = learner.init_state(
      small.params(), with_critic=config.advantage.estimator == 'gae'
  )
  first = lambda tree: jax.tree.map(lambda x: np.asarray(x)[:ROWS], tree)
  zeros_BT = np.zeros((ROWS, 32), np.float32)
  micro = [
      batch_lib.Minibatch(
          rows=learner.place_rows(first(rows)),
          advantage_BT=zeros_BT,
          return_BT=zeros_BT,
          value_BT=zeros_BT,
          base_logp_BT=zeros_BT,
          reference_logp_BT=zeros_BT,
          policy_weight_BT=zeros_BT,
          critic_weight_BT=zeros_BT,
          strata=first(batch.segments.strata),
          origin=batch.segments.origin,
      )
  ]
  has_critic = state.critic is not None
  return {
      'actor': traced(learner.update_actor, state.actor, micro),
      'critic': has_critic
      and traced(learner.update_critic, state.critic, micro),
      'estimate': has_critic and traced(estimate),
      'advantage': advantage_BT,
      'return': has_critic and estimates.return_BT,
      'weight': batch.policy_weight_BT,
      'passes': has_critic
      and (
          config.critic.warmup_steps,
          config.critic.updates_per_actor_update,
      ),
  }


def traced(function, *arguments) -> str:
  """The program, without the addresses of the functions it was made from."""
  return re.sub('0x[0-9a-f]+', '', str(jax.make_jaxpr(function)(*arguments)))


class PresetsTest(parameterized.TestCase):

  @parameterized.parameters(*PRESETS)
  def test_its_settings_change_the_step(self, name):
    parent, expected = PRESETS[name]
    before, after = step(parent), step(name)
    changed = {
        part
        for part in after
        if not np.array_equal(np.asarray(before[part]), np.asarray(after[part]))
    }
    self.assertEqual(changed, expected)

  @parameterized.parameters(*PRESETS)
  def test_its_page_says_what_it_asks(self, name):
    validation.validate(load(name))
    page = ast.get_docstring(ast.parse((FOLDER / f'{name}.py').read_text()))
    for heading in ('Question', 'Expected', 'Hardware', 'Command'):
      self.assertIn(f'\n{heading}: ', page)
    self.assertIn(f'bash launch/local.sh experiments/{name}.py', page)


if __name__ == '__main__':
  absltest.main()
