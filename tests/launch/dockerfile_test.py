"""The container recipe names what there is, and fits what launchers start."""

import ast
import re

from absl.testing import absltest

from tests.launch import tools


class DockerfileTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    text = (tools.ROOT / 'launch' / 'Dockerfile').read_text('utf-8')
    joined = re.sub(r'\\\n', ' ', text)
    self.steps = [
        line.split(None, 1)
        for line in joined.splitlines()
        if line and not line.startswith('#')
    ]

  def words(self, instruction: str) -> list[str]:
    return [rest for name, rest in self.steps if name == instruction]

  def test_what_is_copied_is_there(self):
    *single, everything = self.words('COPY')
    self.assertEqual(everything, '. .')
    sources = [source for rest in single for source in rest.split()[:-1]]
    self.assertContainsSubset(
        ['setup.py', 'constraints.txt', 'launch/setup.sh'], sources
    )
    for source in sources:
      self.assertTrue((tools.ROOT / source).is_file(), source)

  def test_setup_installs_the_extra_of_pods(self):
    (install,) = [run for run in self.words('RUN') if 'setup.sh' in run]
    extras = install.split('launch/setup.sh')[1].split()
    self.assertEqual(extras, ['pod'])
    tree = ast.parse((tools.ROOT / 'setup.py').read_text('utf-8'))
    (known,) = [
        ast.literal_eval(keyword.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == 'extras_require'
    ]
    names = [re.split('[<>=]', package)[0] for package in known['pod']]
    self.assertEqual(names, ['gcsfs', 'libtpu', 'pathwaysutils'])

  def test_python_is_the_one_that_was_installed_into(self):
    (workdir,) = self.words('WORKDIR')
    self.assertIn(f'PATH={workdir}/.venv/bin:$PATH', self.words('ENV'))

  def test_nothing_of_this_machine_is_copied(self):
    ignored = (tools.ROOT / 'launch' / 'Dockerfile.dockerignore').read_text()
    self.assertContainsSubset(
        ['.git', '.venv', '.venv-launch', 'runs'], ignored.splitlines()
    )

  def test_no_protection_is_installed_that_no_code_uses(self):
    code = ''.join(
        path.read_text('utf-8')
        for path in sorted((tools.ROOT / 'rl_tpu').rglob('*.py'))
    )
    text = (tools.ROOT / 'launch' / 'Dockerfile').read_text('utf-8')
    for name, program in (
        ('bubblewrap', 'bwrap'), ('util-linux', 'prlimit'),
        ('firejail', 'firejail'), ('nsjail', 'nsjail'), ('runsc', 'runsc'),
    ):
      if name in text or program in text:
        self.assertRegex(code, rf"['\"/]{program}['\"]", name)


if __name__ == '__main__':
  absltest.main()
