"""Static checks of settings: each refusal names setting, value and cure."""

import dataclasses
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.config import validation


class ValidationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    for name in ('config.json', 'tokenizer.json'):
      (folder / name).write_text('{}')
    self.folder = folder
    self.config = schema.ExperimentConfig(
        'test',
        model=schema.ModelConfig(path=str(folder)),
        environment=schema.EnvironmentConfig(target='a:B'),
        verifier=schema.VerifierConfig(target='a:B'),
        tasks=schema.TasksConfig(target='a:B'),
        budgets=schema.budget_lib.Budget(window=96),
        sampler=schema.SamplerConfig(prefill_buckets=(48, 96)),
        batching=schema.BatchingConfig(row_length=128),
    )

  def refusal(self, *assignments: str, verb: str = 'train') -> str:
    config = overrides.apply(self.config, assignments)
    with self.assertRaises(ValueError) as caught:
      validation.validate(config, verb=verb)
    message = str(caught.exception)
    self.assertNotIn('\n', message)
    return message

  def test_what_is_always_at_work_does_not_wait_at_the_host(self):
    self.assertIn(
        'use memory.critic=device or critic.sharing=separate',
        self.refusal('memory.critic=host', 'critic.sharing=shared_backbone'),
    )
    self.assertIn(
        'use memory.reference=device',
        self.refusal('memory.reference=host', 'model.lora.rank=4'),
    )

  def test_a_good_experiment_passes(self):
    validation.validate(self.config)
    validation.validate(self.config, verb='evaluate')

  @parameterized.parameters(
      ('steps=0', 'steps=0'),
      ('steps=-3', 'steps=-3'),
      ('time_limit_s=0', 'time_limit_s=0.0'),
      ('token_limit=0', 'token_limit=0'),
      ('seed=-1', 'seed=-1'),
      ('mesh.fsdp=0', 'mesh.fsdp=0'),
      ('mesh.fsdp=-1', 'mesh.data and mesh.fsdp=-1'),
      ('model.dtype=float16', 'model.dtype='),
      ('model.remat=true', 'model.remat='),
      ('model.attention=flash', 'model.attention='),
      ('sampler.publish=move', 'sampler.publish='),
      ('memory.critic=disk', 'memory.critic='),
      ('model.logits_chunk=0', 'model.logits_chunk=0'),
      ('model.chat_template=gone.jinja', "model.chat_template='gone.jinja'"),
      ('model.template_variables.x={1}', 'model.template_variables.x={1}'),
      ('model.lora.rank=-1', 'model.lora.rank=-1'),
      ('model.lora.alpha=0', 'model.lora.alpha=0.0'),
      ('model.lora.targets=query,kye', "model.lora.targets='kye'"),
      ('environment.isolation=thread', 'environment.isolation='),
      ('environment.workers=0', 'environment.workers=0'),
      ('environment.target=nothing', 'environment.target='),
      ('verifier.timeout_s=0', 'verifier.timeout_s=0.0'),
      ('tasks.target=', 'tasks.target='),
      ('compaction.mode=on', 'compaction.mode='),
      ('compaction.author=me', 'compaction.author='),
      ('compaction.carry=saved', 'compaction.carry='),
      ('compaction.every_turns=0', 'compaction.every_turns=0'),
      ('budgets.turns=0', 'budgets.turns=0'),
      ('budgets.window=None', 'budgets.window=None'),
      ('budgets.window=32', 'budgets.window=32'),
      ('batching.row_length=64', 'batching.row_length=64'),
      ('sampler.prefill_buckets=64', 'sampler.prefill_buckets='),
      ('sampler.prefill_buckets=96,48', 'sampler.prefill_buckets='),
      ('sampler.sync=later', 'sampler.sync='),
      ('sampler.slots=0', 'sampler.slots=0'),
      ('sampling.stop=', 'sampling.stop='),
      ('sampling.max_turn_tokens=0', 'sampling.max_turn_tokens=0'),
      ('termination.budget_truncation=zero', 'termination.budget_truncation='),
      ('termination.max_missing=2', 'termination.max_missing=2.0'),
      ('batching.minibatches=65', 'batching.minibatches=65'),
      ('batching.epochs=0', 'batching.epochs=0'),
      ('gae.gamma=1.5', 'gae.gamma=1.5'),
      ('gae.lambda_critic.fixed=2', 'gae.lambda_critic.fixed=2.0'),
      ('gae.lambda_critic.fixed=None', 'gae.lambda_critic='),
      (
          'gae.lambda_policy.length_adaptive=0',
          'gae.lambda_policy.length_adaptive=0.0',
      ),
      ('gae.cut=drop', 'gae.cut='),
      ('advantage.estimator=a2c', 'advantage.estimator='),
      ('advantage.norm=all', 'advantage.norm='),
      ('clip.eps_low=0', 'clip.eps_low=0.0'),
      ('clip.dual=1', 'clip.dual=1.0'),
      ('policy.baseline=old', 'policy.baseline='),
      ('loss.aggregation=mean', 'loss.aggregation='),
      ('loss.constant=0', 'loss.constant=0.0'),
      ('critic.holdout_fraction=1', 'critic.holdout_fraction=1.0'),
      ('critic.values=none', 'critic.values='),
      ('critic.updates_per_actor_update=0', 'critic.updates_per_actor_update'),
      ('actor_optimizer.schedule=step', 'actor_optimizer.schedule='),
      ('actor_optimizer.schedule=linear', 'actor_optimizer.decay_steps=0'),
      ('critic_optimizer.b2=1', 'critic_optimizer.b2=1.0'),
      ('critic_optimizer.learning_rate=0', 'critic_optimizer.learning_rate'),
      ('evaluation.temperatures=-1', 'evaluation.temperatures='),
      ('evaluation.temperatures=1,1', 'evaluation.temperatures='),
      ('checkpoint.keep=0', 'checkpoint.keep=0'),
  )
  def test_refuses(self, assignment, named):
    self.assertStartsWith(self.refusal(assignment), named)

  def test_near_words_are_suggested(self):
    self.assertIn('did you mean token', self.refusal('critic.level=tokn'))

  @parameterized.parameters('top_p=0.9', 'top_k=5', 'min_p=0.1')
  def test_O5_a_support_that_is_not_recorded_is_refused(self, assignment):
    message = self.refusal(f'sampling.{assignment}', 'sampling.max_support=0')
    self.assertStartsWith(message, f'sampling.{assignment.split("=")[0]}=')
    self.assertIn('O5', message)

  @parameterized.parameters('top_p=0.9', 'top_k=5', 'min_p=0.1')
  def test_O5_unreplayable_sampling_needs_its_own_baseline(self, assignment):
    chosen = [f'sampling.{assignment}', 'sampling.allow_unreplayable=true']
    message = self.refusal(*chosen)
    self.assertIn('set policy.baseline=decoupled', message)
    chosen.append('policy.baseline=decoupled')
    message = self.refusal(*chosen, 'policy.correction=tis')
    self.assertIn('set policy.correction=none', message)
    validation.validate(overrides.apply(self.config, chosen))

  @parameterized.parameters('top_p=0.9', 'top_k=5', 'min_p=0.1')
  def test_L16_recorded_supports_are_accepted(self, assignment):
    config = overrides.apply(self.config, [f'sampling.{assignment}'])
    validation.validate(config)
    self.assertEqual(config.sampling.recorded_support, 256)
    self.assertEqual(self.config.sampling.recorded_support, 0)

  def test_R5_a_support_that_never_fits_is_refused(self):
    message = self.refusal('sampling.top_k=9', 'sampling.max_support=8')
    self.assertIn('raise sampling.max_support', message)

  @parameterized.parameters('0', '-1')
  def test_K14_temperature_at_or_below_zero_is_refused(self, value):
    message = self.refusal(f'sampling.temperature={value}')
    self.assertIn('above 0', message)

  @parameterized.parameters('grpo', 'rloo', 'dr_grpo')
  def test_E2_group_of_one_is_refused(self, estimator):
    message = self.refusal(f'advantage.estimator={estimator}')
    self.assertStartsWith(message, 'group.size=1')

  def test_E2_bootstrap_with_a_group_estimator_is_refused(self):
    message = self.refusal(
        'advantage.estimator=grpo',
        'group.size=4',
        'termination.context_truncation=bootstrap',
    )
    self.assertStartsWith(message, 'termination.context_truncation=')

  def test_E4_dr_grpo_needs_the_fixed_length(self):
    base = ('advantage.estimator=dr_grpo', 'group.size=4')
    self.assertStartsWith(self.refusal(*base), 'loss.aggregation=')
    config = overrides.apply(
        self.config, [*base, 'loss.aggregation=constant', 'loss.constant=64']
    )
    validation.validate(config)

  def test_E7_group_min_size_below_two_is_refused(self):
    self.assertStartsWith(self.refusal('group.min_size=1'), 'group.min_size=1')

  def test_group_estimator_has_no_critic_to_warm_up(self):
    message = self.refusal(
        'advantage.estimator=grpo', 'group.size=4', 'critic.warmup_steps=2'
    )
    self.assertStartsWith(message, 'critic.warmup_steps=2')

  @parameterized.parameters('reset_trace', 'cut_terminal', 'position_scaled')
  def test_G20_turn_time_with_another_cut_is_refused(self, cut):
    message = self.refusal('gae.time_unit=turn', f'gae.cut={cut}')
    self.assertStartsWith(message, 'gae.cut=')

  def test_G19_turn_level_needs_turn_time(self):
    self.assertStartsWith(self.refusal('critic.level=turn'), 'critic.level=')
    validation.validate(
        overrides.apply(
            self.config, ['critic.level=turn', 'gae.time_unit=turn']
        )
    )

  @parameterized.parameters(
      (('kl.in=reward', 'kl.estimator=k2'), 'kl.estimator='),
      (
          ('kl.in=reward', 'advantage.estimator=grpo', 'group.size=4'),
          'kl.in=',
      ),
      (('kl.in=reward', 'kl.importance=true'), 'kl.importance='),
  )
  def test_G8_kl_in_reward_takes_k1_and_a_critic(self, assignments, named):
    self.assertStartsWith(self.refusal(*assignments), named)

  def test_L6_k1_in_the_loss_needs_importance(self):
    base = ('kl.in=loss', 'kl.estimator=k1')
    self.assertStartsWith(self.refusal(*base), 'kl.estimator=')
    validation.validate(
        overrides.apply(self.config, [*base, 'kl.importance=true'])
    )

  def test_kl_coefficient_without_a_place_is_refused(self):
    self.assertStartsWith(self.refusal('kl.coef=0.1'), 'kl.coef=0.1')

  @parameterized.parameters(
      ('batching.rows_per_microbatch=30', 'batching.rows_per_microbatch=30'),
      ('sampler.slots=30', 'sampler.slots=30'),
  )
  def test_K30_batch_that_no_mesh_axis_divides_is_refused(self, bad, named):
    message = self.refusal('mesh.data=2', 'mesh.fsdp=4', bad)
    self.assertStartsWith(message, named)
    self.assertIn('mesh.data', message)

  def test_wrong_type_in_the_experiment_file_is_refused(self):
    config = dataclasses.replace(self.config, steps='10')
    with self.assertRaisesRegex(ValueError, "^steps: '10' is not a whole"):
      validation.validate(config)
    config = dataclasses.replace(
        self.config, gae=dataclasses.replace(self.config.gae, gamma=None)
    )
    with self.assertRaisesRegex(ValueError, '^gae.gamma: None is not'):
      validation.validate(config)

  def test_model_folder_is_looked_at(self):
    (self.folder / 'config.json').unlink()
    self.assertIn('no config.json', self.refusal())
    self.assertIn('no such folder', self.refusal('model.path=/nowhere/here'))
    self.assertStartsWith(self.refusal('model.path='), "model.path=''")

  def test_sft_needs_its_section_but_no_model_folder(self):
    message = self.refusal('model.path=/nowhere', verb='sft')
    self.assertStartsWith(message, 'sft=None')
    config = dataclasses.replace(
        self.config,
        model=schema.ModelConfig(path='/nowhere'),
        verifier=schema.VerifierConfig(),
        sft=schema.SftConfig(target='a:B', tokenizer='a:f', out='folder'),
    )
    validation.validate(config, verb='sft')
    config = dataclasses.replace(
        config, sft=dataclasses.replace(config.sft, out='')
    )
    with self.assertRaisesRegex(ValueError, "^sft.out=''"):
      validation.validate(config, verb='sft')


if __name__ == '__main__':
  absltest.main()
