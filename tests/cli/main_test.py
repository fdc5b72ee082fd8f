"""Words, exit codes and one-line refusals of the command line (K39)."""

import contextlib
import errno
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.cli import main
from rl_tpu.cli import stopping
from rl_tpu.cli import tables
from rl_tpu.cli import verbs
from rl_tpu.types import stops

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

EXPERIMENT = """
from rl_tpu.config import schema

def get_config():
  return schema.ExperimentConfig(
      'tiny',
      model=schema.ModelConfig(path={model!r}),
      environment=schema.EnvironmentConfig(target='a:B'),
      verifier=schema.VerifierConfig(target='a:B'),
      tasks=schema.TasksConfig(target='a:B'),
      budgets=schema.budget_lib.Budget(window=96),
      sampler=schema.SamplerConfig(prefill_buckets=(96,)),
  )
"""

# Runs main in a fresh process and says whether jax was imported.
PROBE = """
import sys
from rl_tpu.cli import main
code = main.main(sys.argv[1:])
print('jax' in sys.modules, code)
"""


def call(*words: str) -> tuple[int, str, str]:
  """Exit code, standard output and standard error of a command."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = main.main(words)
  return code, out.getvalue(), err.getvalue()


class CommandTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.model = self.folder / 'model'
    self.model.mkdir()
    for name in ('config.json', 'tokenizer.json'):
      (self.model / name).write_text('{}')
    self.experiment = self.folder / 'tiny.py'
    self.experiment.write_text(EXPERIMENT.format(model=str(self.model)))
    self.base = (
        'train',
        f'--experiment={self.experiment}',
        f'--workdir={self.folder / "work"}',
    )

  def refused(self, *words: str) -> str:
    """The one line of a refusal; nothing was started or written."""
    code, out, err = call(*words)
    self.assertEqual(code, 2, err)
    self.assertEqual(out, '')
    self.assertLen(err.splitlines(), 1)
    self.assertStartsWith(err, 'rl_tpu: ')
    self.assertFalse((self.folder / 'work').exists())
    return err

  def test_K54_a_line_steers_no_terminal_and_ends(self):
    found = main.one_line(ValueError('a\x1b[2J\nb\u202ec\ud800 ' + 'x' * 10**6))
    self.assertStartsWith(found, 'a\\x1b[2J b\\u202ec\\ud800 xxx')
    self.assertLess(len(found), 2100)

  @parameterized.parameters(
      ((), 'one of train, sft, evaluate, inspect, score'),
      (('trian',), 'did you mean train?'),
      (('--set', 'x=1'), 'the verb comes first'),
      (('train',), '--experiment is missing'),
      (('train', '--experimnt=x'), 'did you mean --experiment?'),
      (('train', 'gae.gamma=1'), 'did you mean --set gae.gamma=1?'),
      (('train', 'workdri=x'), 'did you mean --set workdri=x?'),
      (('train', 'experiment'), 'did you mean --experiment?'),
      (('train', 'workdir=x'), 'did you mean --workdir=x?'),
      (('train', '--workdir'), 'Missing value'),
      (('train', '--experiment=no/x.py', '--workdir=w'), 'no/x.py: there is'),
      (('inspect', '--workdir=/nowhere/here'), 'it holds no rollouts'),
      (('inspect', '--workdir=x', '--step=two'), '--step=two'),
      (('inspect', '--workdir=x', '--order=last'), '--order=last'),
      (('evaluate', '--workdir=/nowhere/here'), 'there is no such file'),
      (('evaluate', '--workdir=gs://b/x'), 'gcloud storage cp --recursive gs'),
      (('score', '--model=/nowhere', '--input=/nowhere/x'), '/nowhere/x: No'),
  )
  def test_words_are_refused_with_one_line_and_exit_code_2(
      self, words, message
  ):
    self.assertIn(message, self.refused(*words))

  @parameterized.parameters(
      ('gae_lamda=0.9', 'did you mean gae.'),
      ('gae.lamda_policy.fixed=0.9', 'did you mean gae.lambda_policy.fixed?'),
      ('clips.eps_low=0.1', 'did you mean clip.eps_low?'),
      ('steps=abc', 'steps:'),
      ('steps=0', 'steps=0'),
      ('sampling.top_p=1.1', 'sampling.top_p=1.1'),
      ('advantage.estimator=grpo', 'group.size=1'),
      ('model.path=/nowhere', 'model.path='),
      ('budgets.window=8', 'budgets.window=8'),
      ('gae.gamma', 'path=value'),
  )
  def test_K39_settings_are_refused_with_one_line_and_exit_code_2(
      self, assignment, message
  ):
    self.assertIn(message, self.refused(*self.base, '--set', assignment))

  def test_experiment_without_get_config_is_refused(self):
    self.experiment.write_text('X = 1')
    self.assertIn('no function get_config()', self.refused(*self.base))

  def test_model_folder_without_config_is_refused(self):
    (self.model / 'config.json').unlink()
    self.assertIn('no config.json', self.refused(*self.base))

  def test_target_without_module_is_refused_by_the_loader(self):
    self.assertIn(
        'environment.target',
        self.refused(*self.base, '--set', 'environment.target=B'),
    )

  @parameterized.parameters('--set=a.b=1', '--experiment=/nowhere/x.py')
  def test_mistakes_are_found_before_jax_is_imported(self, word):
    done = subprocess.run(
        [sys.executable, '-c', PROBE, *self.base, word],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    self.assertEqual(done.stdout.strip(), 'False 2', done.stderr)

  def test_python_m_exits_with_the_code(self):
    done = subprocess.run(
        [sys.executable, '-m', 'rl_tpu', 'trian'],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    self.assertEqual(done.returncode, 2)
    self.assertEqual(done.stdout, '')
    self.assertLen(done.stderr.splitlines(), 1)

  def test_config_prints_the_settings_with_overrides(self):
    shutil.rmtree(self.model)  # It may be where the run will be.
    word = f'--experiment={self.experiment}'
    code, out, _ = call('config', word, '--set=mesh.fsdp=4')
    self.assertEqual(code, 0)
    printed = json.loads(out)
    self.assertEqual(printed['name'], 'tiny')
    self.assertEqual(printed['mesh']['fsdp'], 4)
    self.assertEqual(printed['model']['path'], str(self.model))
    self.assertIn('mesh.fsdp', self.refused('config', word, '--set=mesh.fsp=4'))

  def test_help_is_exit_code_0(self):
    code, out, err = call('--help')
    self.assertEqual((code, err), (0, ''))
    for verb in verbs.VERBS:
      self.assertIn(verb.name, out)
    code, out, _ = call('train', '--help')
    self.assertEqual(code, 0)
    for name in ('--experiment', '--workdir', '--set'):
      self.assertIn(name, out)


class ErrorsTest(parameterized.TestCase):

  def run_verb(self, work) -> tuple[int, str]:
    verb = verbs.Verb('try', 'a test', (), work)
    with mock.patch.object(verbs, 'VERBS', (verb,)):
      code, _, err = call('try')
    return code, err

  @parameterized.parameters(
      ValueError('first\n  second'),
      FileNotFoundError(2, 'No such file or directory', 'x.json'),
      ModuleNotFoundError('No module named y', name='y'),
  )
  def test_mistake_before_work_is_one_line(self, error):
    def work(values, phase):
      raise error

    code, err = self.run_verb(work)
    self.assertEqual(code, 2)
    self.assertLen(err.splitlines(), 1)

  @parameterized.parameters(
      KeyError('x'),
      TypeError('y'),
      AssertionError('z'),
      ModuleNotFoundError('No module', name='rl_tpu.nothing'),
  )
  def test_internal_error_keeps_its_traceback(self, error):
    def work(values, phase):
      raise error

    code, err = self.run_verb(work)
    self.assertEqual(code, 1)
    self.assertIn('Traceback', err)

  def test_A5_a_run_that_stopped_itself_says_why_in_one_line(self):
    def work(values, phase):
      phase.begin()
      raise stops.RunStopped('update 7: too many faults.')

    code, err = self.run_verb(work)
    self.assertEqual(code, 1)
    self.assertEqual(err, 'rl_tpu: update 7: too many faults.\n')

  def test_a_full_disk_is_one_line(self):
    def work(values, phase):
      phase.begin()
      raise OSError(errno.ENOSPC, 'No space left on device', '/out/a.json')

    code, err = self.run_verb(work)
    self.assertEqual(code, 1)
    self.assertEqual(err, 'rl_tpu: /out/a.json: No space left on device.\n')

  def test_value_error_during_work_keeps_its_traceback(self):
    def work(values, phase):
      phase.begin()
      raise ValueError('shapes differ')

    code, err = self.run_verb(work)
    self.assertEqual(code, 1)
    self.assertIn('Traceback', err)
    self.assertIn('shapes differ', err)

  def test_interrupt_is_130_without_traceback(self):
    def work(values, phase):
      raise KeyboardInterrupt

    code, err = self.run_verb(work)
    self.assertEqual((code, err), (130, 'interrupted.\n'))

  def test_done_is_0(self):
    self.assertEqual(self.run_verb(lambda values, phase: 0), (0, ''))


class StoppingTest(absltest.TestCase):

  def test_first_signal_asks_second_interrupts(self):
    before = signal.getsignal(signal.SIGINT)
    err = io.StringIO()
    with contextlib.redirect_stderr(err), stopping.StopAsked() as stop:
      self.assertFalse(stop())
      self.assertEqual(stop.exit_code, 0)
      os.kill(os.getpid(), signal.SIGINT)
      self.assertTrue(stop())
      self.assertEqual(stop.exit_code, 130)
      with self.assertRaises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    self.assertIn('SIGINT', err.getvalue())
    self.assertIs(signal.getsignal(signal.SIGINT), before)

  def test_a_second_sigterm_ends_what_waits(self):
    # It waits where Python's own handlers are not run.
    code = (
        'import ctypes, sys\n'
        'from rl_tpu.cli import stopping\n'
        'with stopping.StopAsked():\n'
        '  print("ready", flush=True)\n'
        '  while True:\n'
        '    ctypes.CDLL(None).sleep(60)\n'
    )
    process = subprocess.Popen(
        [sys.executable, '-c', code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    self.addCleanup(process.kill)
    self.assertEqual(process.stdout.readline(), 'ready\n')
    process.send_signal(signal.SIGTERM)
    self.assertIn('SIGTERM: saving and stopping', process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    self.assertEqual(process.wait(timeout=10), -signal.SIGTERM)

  def test_sigterm_is_143(self):
    with contextlib.redirect_stderr(io.StringIO()):
      with stopping.StopAsked() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        self.assertEqual(stop.exit_code, 143)


class TablesTest(absltest.TestCase):

  def rendered(self, table) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      verbs.console().print(table)
    return out.getvalue()

  def test_training_table_says_everything(self):
    text = self.rendered(
        tables.training({
            'before': {1.0: (0.11, 0.08, 0.15), 0: (0.0, 0.0, 0.0)},
            'after': {1.0: (0.91, 0.87, 0.94)},
            'phase_s': {'rollout': 30.0, 'update': 90.0},
            'tokens_per_s': 8123.4,
            'workdir': 'runs/x',
            'checkpoint': 'runs/x/checkpoints/90',
            'updates': 90,
            'train_s': 240.0,
            'stopped': 'time_limit',
        })
    )
    for part in (
        '0.110 [0.080, 0.150]  ->  0.910 [0.870, 0.940]',
        'T = 1',
        'greedy',
        'not measured',
        '90 in 240 s; the time limit is reached',
        '8,123',
        '90.0  (75%)',
        'tensorboard --logdir=runs/x/tb',
        'inspect --workdir=runs/x',
        'runs/x/checkpoints/90',
    ):
      self.assertIn(part, text)
    self.assertLess(text.index('seconds: update'), text.index('rollout'))

  def test_other_tables(self):
    text = self.rendered(tables.evaluation({'greedy': (0.5, 0.4, 0.6)}))
    self.assertIn('0.500 [0.400, 0.600]', text)
    text = self.rendered(
        tables.supervised(
            {'out': 'folder', 'steps': 3, 'loss': 0.25, 'seconds': 2.0}
        )
    )
    self.assertIn('0.2500', text)
    self.assertIn('folder', text)


class ScoreInputTest(parameterized.TestCase):

  @parameterized.parameters(
      ('{"ids": [1, 2]}\n{"id": [1]}', ':2: the row has no field "ids"'),
      ('{"ids": [1]}', ':1: "ids" must be a list'),
      ('{"ids": [1, true]}', ':1: "ids" must be a list'),
      ('{"ids": "ab"}', ':1: "ids" must be a list'),
      ('{"ids": [1, 2]', ':1: not JSON'),
      ('', 'the file has no rows'),
  )
  def test_faulty_row_is_named_by_file_and_line(self, text, message):
    path = pathlib.Path(self.create_tempdir().full_path) / 'rows.jsonl'
    path.write_text(text)
    code, out, err = call('score', '--model=/nowhere', f'--input={path}')
    self.assertEqual((code, out), (2, ''))
    self.assertIn(f'rows.jsonl{message}' if message[0] == ':' else message, err)

  def test_missing_model_folder_is_named(self):
    path = pathlib.Path(self.create_tempdir().full_path) / 'rows.jsonl'
    path.write_text(json.dumps({'ids': [1, 2]}))
    code, _, err = call('score', '--model=/nowhere', f'--input={path}')
    self.assertEqual(code, 2)
    self.assertIn("--model='/nowhere'", err)


if __name__ == '__main__':
  absltest.main()
