"""Every mistake is one clear line and exit code 2, and nothing is run."""

import contextlib
import io
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from launch import commandline
from launch import jobset
from launch import libtpu
from launch import pathways
from launch import queued_resources
from launch import xpk
from tests.launch import tools

_LAUNCHERS = {
    'xpk': (xpk, ('--cluster=pod',)),
    'jobset': (jobset, ()),
    'queued_resources': (queued_resources, ('--zone=us-east5-a',)),
    'pathways': (pathways, ('--cluster=pod',)),
}
_EVERY = tuple(_LAUNCHERS)
_ON_XPK = ('xpk', 'pathways')
# Flag that is wrong, launchers that take it, and what the line has to say.
_MISTAKES = (
    ('--tpu-type=v5p-100', _EVERY, 'near it: v5p-128, v5p-64'),
    ('--tpu-type=v5e-16', _EVERY, 'near it: v5litepod-16'),
    ('--workdir=runs/first', _EVERY, '--workdir=runs/first: .*gs://'),
    ('--workdir=gs:/bucket/first', _EVERY, '--workdir=gs:/bucket/first: '),
    ('--workload=First_Run', _EVERY, '--workload=First_Run: .*lower-case'),
    (f'--workload={"a" * 40}', _EVERY, 'at most 39'),
    ('--workload=first-', _EVERY, '--workload=first-: '),
    ('--num-slices=0', _EVERY, '--num-slices=0: at least 1'),
    ('--num-slices=two', _EVERY, "--num-slices: .*'two'"),
    ('--experiment=experiments/nope.py', _EVERY,
     '--experiment=experiments/nope.py: there is no such file'),
    ('--experiment=/tmp/nope.py', _EVERY, 'outside the repository'),
    ('--set=mesh.fsdp=7', _EVERY,
     'mesh.fsdp = 7, .*a multiple of 7 devices, 1 x v5p-32 has 16'),
    ('--set=mesh.data=8', _EVERY, 'needs 8 devices, 1 x v5p-32 has 16'),
    ('--set=mesh.fsp=8', _EVERY, 'mesh.fsp: .*mesh.fsdp'),
    ('--env=A', _EVERY, '--env=A: write NAME=VALUE'),
    ('--profile-steps=5', _EVERY, '--profile-steps=5: .*5-7'),
    ('--profile-steps=7-5', _EVERY, '--profile-steps=7-5: .*5-7'),
    ('--libtpu-presets=ovrlap', _EVERY, 'ovrlap: .*overlap, slices, vmem'),
    ('--cluster=My_Cluster', _ON_XPK, '--cluster=My_Cluster: '),
    ('--clustre=pod', _ON_XPK, '--clustre: .*did you mean --cluster'),
    ('--cluster', _ON_XPK, '--cluster: expected one argument'),
    ('--zone=us-east5', (*_ON_XPK, 'queued_resources'),
     '--zone=us-east5: .*us-east5-a'),
    ('--tpu-type=v5litepod-4', _ON_XPK, 'xpk has no such type'),
    ('--restart-on-exit-codes=2', ('xpk', 'jobset'), '2 is a mistake'),
    ('--restart-on-exit-codes=x', ('xpk', 'jobset'), 'exit-codes=x: write'),
    ('--queue=My_Queue', ('jobset',), '--queue=My_Queue: '),
    ('--output=/nope/job.yaml', ('jobset',), '--output=/nope/job.yaml: No'),
    ('--tpu-type=tpu7x-8', ('queued_resources',), 'does not serve TPU7x'),
    ('--valid-until=6', ('queued_resources',), '--valid-until=6: .*6h'),
    ('--step=start', ('queued_resources',), "--step: .*'start'.*create"),
    ('experiments/ppo.py', _EVERY, "'experiments/ppo.py' is left over"),
)


class RefusalsTest(parameterized.TestCase):

  def call(self, name: str, *words: str) -> tuple[int, str, str]:
    """Exit code and output of a launcher on a machine that has no tools."""
    module, own = _LAUNCHERS[name]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = commandline.main(
          module.parser(),
          module.launch,
          [*tools.FLAGS, '--tpu-type=v5p-32', *own, *words],
      )
    return code, out.getvalue(), err.getvalue()

  @parameterized.named_parameters(
      (f'{flag} of {name}', name, flag, says)
      for flag, names, says in _MISTAKES
      for name in names
  )
  def test_a_mistake_is_one_line(self, name, flag, says):
    code, out, err = self.call(name, flag)
    self.assertEqual(code, 2)
    self.assertEqual(out, '')
    self.assertLen(err.splitlines(), 1)
    self.assertRegex(err, f'^launch.{name}: .*{says}')

  @parameterized.parameters(
      # 32 devices: none is left for data, or a fixed data of one.
      ('--set=mesh.fsdp=32',),
      ('--set=mesh.data=1', '--set=mesh.fsdp=-1'),
  )
  def test_only_data_crosses_between_slices(self, *changes):
    code, out, err = self.call('xpk', '--num-slices=2', *changes)
    self.assertEqual((code, out), (2, ''))
    self.assertRegex(err, 'mesh.data becomes 1, which 2 slices do not divide')

  @parameterized.parameters(*_EVERY)
  def test_presets_and_their_variable_exclude_each_other(self, name):
    code, _, err = self.call(
        name, '--libtpu-presets=vmem', '--env=LIBTPU_INIT_ARGS=--a=1'
    )
    self.assertEqual(code, 2)
    self.assertIn('use one of them', err)

  @parameterized.parameters(*_EVERY)
  def test_what_is_missing_is_named(self, name):
    module, _ = _LAUNCHERS[name]
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      code = commandline.main(module.parser(), module.launch, [])
    self.assertEqual(code, 2)
    self.assertIn('--experiment, --workdir, --tpu-type', err.getvalue())

  @parameterized.parameters(
      ('xpk', (), 'pipx install xpk'),
      ('pathways', (), 'pipx install xpk'),
      ('queued_resources', ('--step=create',), 'gcloud is not installed'),
  )
  def test_a_tool_that_is_not_installed_is_named(self, name, words, says):
    empty = self.create_tempdir().full_path
    with mock.patch.dict(os.environ, PATH=empty):
      code, _, err = self.call(name, *words)
    self.assertEqual(code, 2)
    self.assertLen(err.splitlines(), 1)
    self.assertIn(says, err)

  @parameterized.parameters(*_EVERY)
  def test_help_tells_every_flag(self, name):
    module, _ = _LAUNCHERS[name]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      with self.assertRaises(SystemExit) as ended:
        module.parser().read(['--help'])
    self.assertEqual(ended.exception.code, 0)
    for flag, names, _ in _MISTAKES:
      name_of_flag = flag.split('=')[0]
      if name in names and name_of_flag not in ('--clustre', flag):
        self.assertIn(f' {name_of_flag} ', out.getvalue())
    for preset in libtpu.PRESETS:
      self.assertIn(preset, out.getvalue())

  def test_steps_to_trace_become_settings(self):
    code, out, err = self.call('xpk', '--dry-run', '--profile-steps=5-7')
    self.assertEqual(code, 0, err)
    self.assertIn(
        '--set=log.profile_first=5 --set=log.profile_last=7', out
    )


if __name__ == '__main__':
  absltest.main()
