"""`export` and the importers, from the command line."""

import contextlib
import io
import json
import pathlib

from absl.testing import absltest
import jax
import numpy as np

from rl_tpu.assembly import policy as policy_lib
from rl_tpu.checkpointing import store as store_lib
from rl_tpu.cli import main
from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.learner import networks
from rl_tpu.models import huggingface
from rl_tpu.models import value_head
from rl_tpu.text import chat
from rl_tpu.text import tokenizer as tokenizer_lib
from tests import tiny
from tests.models import cases
from tests.models import llama2c_test
from tests.text import piece_tokenizer_test


def call(*words: str) -> tuple[int, str, str]:
  """Exit code, standard output and standard error of a command."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = main.main(words)
  return code, out.getvalue(), err.getvalue()


def changed(tree, by: float):
  """A tree of the same shapes with numbers of its own."""
  return jax.tree.map(lambda x: x * np.float32(0.5) + np.float32(by), tree)


class ExportTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.model = tiny.model_folder(self.root)
    self.workdir, self.out = self.root / 'work', self.root / 'out'

  def run_with_checkpoints(self, *assignments, steps=((3, 0.9), (5, 0.1))):
    """A run's directory, whose networks differ from step to step."""
    config = overrides.apply(tiny.experiment(self.model), list(assignments))
    self.workdir.mkdir()
    loading.save(config, str(self.workdir / 'config.json'))
    policy = policy_lib.build_policy(config)
    learner = policy_lib.build_learner(config, policy.decoder, policy.mesh)
    gae = config.advantage.estimator == 'gae'
    fresh = learner.init_state(policy.params, with_critic=gae)
    store = store_lib.CheckpointStore(
        str(self.workdir / 'checkpoints'), config.checkpoint
    )
    states = {}
    for step, success in steps:
      state = fresh._replace(
          actor=fresh.actor._replace(params=changed(fresh.actor.params, step))
      )
      if state.critic is not None:
        critic = changed(fresh.critic.params, step + 0.5)
        state = state._replace(critic=fresh.critic._replace(params=critic))
      store.save(step, state.parts, tiny.host_part(), success=success)
      states[step] = state
    store.close()
    return states

  def export(self, *words: str) -> tuple[int, str, str]:
    return call(
        'export', f'--workdir={self.workdir}', f'--out={self.out}', *words
    )

  def test_K40_the_folder_is_bit_equal_to_the_checkpoint(self):
    states = self.run_with_checkpoints()
    code, out, err = self.export()
    self.assertEqual((code, err), (0, ''))
    self.assertIn('checkpoint 3', out)  # Of two the better one.
    config, params = huggingface.load(self.out)
    jax.tree.map(
        np.testing.assert_array_equal, params, states[3].actor.params
    )
    critic = value_head.load(self.out, config)
    wanted = states[3].critic.params
    jax.tree.map(
        np.testing.assert_array_equal,
        {'backbone': critic.backbone, networks.HEAD: dict(critic.head)},
        wanted,
    )
    # The folder is a start again, with its texts as they were.
    texts = tokenizer_lib.Tokenizer.from_folder(self.out)
    before = tokenizer_lib.Tokenizer.from_folder(self.model)
    self.assertEqual(texts.hash, before.hash)
    self.assertEqual(
        chat.ChatTemplate.from_folder(self.out).hash,
        chat.ChatTemplate.from_folder(self.model).hash,
    )
    content = json.loads((self.out / 'generation_config.json').read_text())
    self.assertEqual(content['eos_token_id'], [before.token_id('\n')])
    for word, step in (('latest', 5), ('3', 3)):
      self.out = self.root / f'out-{word}'
      code, _, err = self.export(f'--checkpoint={word}', '--critic=no')
      self.assertEqual((code, err), (0, ''))
      _, params = huggingface.load(self.out)
      jax.tree.map(
          np.testing.assert_array_equal, params, states[step].actor.params
      )
      self.assertFalse((self.out / value_head.FILE).exists())
      self.assertFalse((self.out / value_head.CRITIC).exists())

  def test_K53a_the_ends_of_the_run_are_exported_alike(self):
    model = pathlib.Path(self.model)
    config = json.loads((model / 'config.json').read_text())
    # Of the base: <pad> ends a turn. Of the run: the newline, token 1.
    (model / 'config.json').write_text(
        json.dumps(config | {'eos_token_id': 0})
    )
    (model / 'generation_config.json').write_text('{"eos_token_id": 0}')
    self.run_with_checkpoints(steps=((3, 0.9),))
    self.assertEqual(self.export()[::2], (0, ''))
    for name in ('generation_config', 'config', 'critic/config'):
      found = json.loads((self.out / f'{name}.json').read_text())
      self.assertEqual(found['eos_token_id'], 1, name)
    self.assertEqual(
        tokenizer_lib.Tokenizer.from_folder(self.out).stop_ids, (1,)
    )

  def test_bfloat16_and_a_chat_template_of_the_run(self):
    template = self.root / 'own.jinja'
    template.write_text("{{ messages[0]['content'] }}")
    states = self.run_with_checkpoints(
        f'model.chat_template={template}', steps=((3, 0.9),)
    )
    self.assertEqual(self.export('--dtype=bfloat16')[0], 0)
    self.assertEqual(
        (self.out / 'chat_template.jinja').read_text(), template.read_text()
    )
    content = json.loads((self.out / 'config.json').read_text())
    self.assertEqual(content['torch_dtype'], 'bfloat16')
    _, params = huggingface.load(self.out)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(
            x, np.asarray(y).astype(jax.numpy.bfloat16).astype(np.float32)
        ),
        params,
        states[3].actor.params,
    )

  def test_variables_of_the_run_are_defaults_of_the_folders_template(self):
    template = self.root / 'own.jinja'
    template.write_text("{{ messages[0]['content'] }}{{ mode }}")
    settings = (
        f'model.chat_template={template}', 'model.template_variables.mode=short'
    )
    self.run_with_checkpoints(*settings, steps=((3, 0.9),))
    self.assertEqual(self.export()[0], 0)
    config = overrides.apply(tiny.experiment(self.model), settings)
    asked = [chat.Message('user', 'q')]
    for made in (
        policy_lib.build_policy(config).template,
        chat.ChatTemplate.from_folder(self.out),
    ):
      self.assertEqual(made.render(asked, ask=True), 'qshort')
    other = chat.ChatTemplate.from_folder(self.out, variables={'mode': 'long'})
    self.assertEqual(other.render(asked, ask=True), 'qlong')

  def test_a_shared_backbone_is_the_model_of_the_folder(self):
    states = self.run_with_checkpoints(
        'critic.sharing=shared_backbone', 'critic.head=hl_gauss',
        'critic.bins=5', 'critic.vmin=-1', 'critic.vmax=2',
        'critic.warmup_steps=0', steps=((3, 0.9),),
    )
    code, _, err = self.export()
    self.assertEqual((code, err), (0, ''))
    self.assertFalse((self.out / value_head.CRITIC).exists())
    config, params = huggingface.load(self.out)
    critic = value_head.load(self.out, config)
    self.assertEqual(critic.value_range, (-1.0, 2.0))
    jax.tree.map(
        np.testing.assert_array_equal,
        {**params, networks.HEAD: dict(critic.head)},
        states[3].actor.params,
    )

  def test_mistakes_are_one_line_and_write_nothing(self):
    def refused(*words: str) -> str:
      code, out, err = self.export(*words)
      self.assertEqual((code, out), (2, ''))
      self.assertLen(err.splitlines(), 1)
      self.assertFalse((self.out / 'config.json').exists())
      return err

    self.assertIn('config.json: there is no such file', refused())
    self.workdir.mkdir()
    config = tiny.experiment(self.model)
    loading.save(config, str(self.workdir / 'config.json'))
    self.assertIn('it holds no checkpoint', refused())
    (self.workdir / 'config.json').unlink()
    for path in sorted(self.workdir.rglob('*'), reverse=True):
      path.rmdir()
    self.workdir.rmdir()
    self.run_with_checkpoints()
    self.assertIn('one of the steps 3, 5', refused('--checkpoint=4'))
    self.assertIn('one of the steps 3, 5', refused('--checkpoint=first'))
    self.assertIn('--dtype=float16', refused('--dtype=float16'))
    self.assertIn('--lora=merged', refused('--lora=peft'))
    self.out.mkdir()
    (self.out / 'note').write_text('mine')
    self.assertIn('it is not empty', refused())
    self.out = self.out / 'note'
    self.assertIn('it is a file', refused())


class ImportTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.out = self.root / 'out'

  def test_llama2c(self):
    size = 259 + len(piece_tokenizer_test.PIECES)
    config = cases.config(
        vocab_size=size, tie_embeddings=True, norm_eps=1e-5, max_length=16
    )
    params = cases.params(config)
    data = llama2c_test.checkpoint(config, params)
    (self.root / 'model.bin').write_bytes(data)
    (self.root / 'tok.bin').write_bytes(piece_tokenizer_test.tokenizer_bin())
    words = (
        'import-llama2c',
        f'--checkpoint={self.root / "model.bin"}',
        f'--tokenizer={self.root / "tok.bin"}',
        f'--out={self.out}',
    )
    code, out, err = call(*words)
    self.assertEqual((code, err), (0, ''))
    self.assertIn('tokenizer.json', out)
    found, loaded = huggingface.load(self.out)
    self.assertEqual(found, config)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    texts = tokenizer_lib.Tokenizer.from_folder(self.out)
    self.assertEqual(texts.encode('the').tolist()[-1:], [262])
    self.assertEqual(texts.stop_ids, (1,))
    template = chat.ChatTemplate.from_folder(self.out)
    said = [chat.Message('user', 'a the'), chat.Message('assistant', ' he')]
    self.assertEqual(template.render(said, ask=True), 'a the he')
    code, out, err = call(*words)
    self.assertEqual((code, out), (2, ''))
    self.assertIn('it is not empty', err)


if __name__ == '__main__':
  absltest.main()
