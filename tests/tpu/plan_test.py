"""Plans for TPUs by their own compiler."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.cli import main
from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.config import schema
from rl_tpu.planning import plan
from rl_tpu.planning import topology
from rl_tpu.sharding import chips
from rl_tpu.sharding import mesh as mesh_lib
from tests import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAIN_JOB = ROOT / 'experiments' / 'arithmetic_tools_ppo.py'
ROWS = 'batching.row_length=256'


def run(*words: str) -> tuple[int, str]:
  """Exit code and output of a command."""
  out = io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
    code = main.main(['plan', f'--experiment={MAIN_JOB}', *words])
  return code, out.getvalue()


class PlanTest(parameterized.TestCase):

  def test_the_main_job_fits_four_chips(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / 'plan.json'
      code, text = run('--topology=v5e:2x2', f'--set={ROWS}', f'--json={path}')
      made = json.loads(path.read_text())
    self.assertEqual(code, 0, text)
    self.assertIn('everything fits', text)
    self.assertTrue(made['fits'])
    self.assertEqual(made['mesh'], {
        'data': 4, 'fsdp': 1, 'expert': 1, 'tensor': 1,
    })
    self.assertEqual(
        [row['name'] for row in made['rows']],
        [
            'prefill', 'decode', 'values', 'advantages', 'critic gradient',
            'critic step', 'actor gradient', 'actor step', 'publish',
        ],
    )
    # The optimizer holds two moments of every parameter, and counters.
    resident = made['resident']
    self.assertBetween(
        resident['actor_optimizer'] / resident['actor'], 2.0, 2.001
    )
    step = next(row for row in made['rows'] if row['name'] == 'actor step')
    # Parameters, moments and gradient, and nothing that is held twice; the
    # chip's layout pads narrow arrays.
    self.assertBetween(
        step['figures']['argument_bytes'] / resident['actor'], 4.0, 4.9
    )

  def test_what_does_not_fit_is_named_with_a_cure(self):
    chip, devices = topology.describe('v5e:2x2')
    config = overrides.apply(
        loading.load_experiment(MAIN_JOB), [ROWS, 'sampler.slots=1048576']
    )
    made = plan.make(
        config, chip, devices, topology='v5e:2x2',
        only=lambda name: name == 'decode',
    )
    self.assertFalse(made.fits)
    cache = made.resident['cache']
    # Keys and values: 2 x layers x heads x width x window x 4 bytes a slot.
    self.assertEqual(cache % (1048576 // 4 * 128 * 2 * 4), 0)
    self.assertGreater(cache, chip.memory_gib * 2**30)

  def test_a_sweep_compiles_a_program_once_and_names_the_cheapest(self):
    with tempfile.TemporaryDirectory() as folder:
      model = tiny.model_folder(folder)
      path = pathlib.Path(folder) / 'sweep.json'
      code, text = run(
          '--topology=v5e:2x2', f'--set={ROWS}', f'--set=model.path={model}',
          '--sweep=remat', f'--json={path}',
      )
      trials = json.loads(path.read_text())['sweep']
    self.assertEqual(code, 0, text)
    self.assertEqual(
        [trial['changes'] for trial in trials],
        [[f'model.remat={kind}'] for kind in ('layer', 'attention', 'none')],
    )
    plans = [
        {row['name']: row['figures'] for row in trial['plan']['rows']}
        for trial in trials
    ]
    # A program that the setting does not touch is the first plan's, seconds of
    # compilation and all; the gradients are compiled anew.
    self.assertEqual(plans[0]['decode'], plans[2]['decode'])
    self.assertNotEqual(
        plans[0]['actor gradient']['compile_s'],
        plans[2]['actor gradient']['compile_s'],
    )
    least = min(trials, key=lambda trial: trial['plan']['bound_s'])
    self.assertIn(f'cheapest that fits: {least["changes"][0]} (', text)

  @parameterized.parameters(
      ('--topology=v5x:2x2', 'name a chip of'),
      ('--topology=v5e', 'name a chip of'),
      ('--topology=v5e:3x3', 'v5e:3x3'),
      ('--topology=v5e:2x2 --slices=0', '--slices=0'),
      ('--topology=v5e:2x2 --sweep=speed', '--sweep=speed'),
      ('--topology=v5e:2x2 --set=mesh.tensor=3', 'mesh.'),
      ('--topology=v5e:2x2', 'batching.row_length = 192'),
      ('', '--topology is missing'),
  )
  def test_mistakes_are_one_line(self, words, message):
    code, text = run(*words.split())
    self.assertEqual(code, 2, text)
    self.assertIn(message, text)
    self.assertLen(text.strip().splitlines(), 1)

  @parameterized.parameters(
      ('v4:2x2x1', 4), ('v5e:4x4', 16), ('v5p:2x2x2', 8), ('v6e:2x2', 4),
      ('tpu7x:2x2x1', 8),
  )
  def test_every_chip_has_its_devices(self, name, count):
    chip, devices = topology.describe(name)
    self.assertLen(devices, count)
    self.assertEqual(chip, chips.CHIPS[name.split(':')[0]])

  def test_slices_are_crossed_by_the_data_axis_alone(self):
    _, devices = topology.describe('v5e:2x2', slices=2)
    sizes = schema.MeshConfig(data=2, fsdp=2, tensor=2)
    grid = mesh_lib.make_mesh(sizes, devices).devices
    for index in range(2):
      found = {device.slice_index for device in grid[index].flat}
      self.assertLen(found, 1)
    with self.assertRaisesRegex(ValueError, 'mesh.data = 1'):
      mesh_lib.make_mesh(schema.MeshConfig(data=1, fsdp=8), devices)


if __name__ == '__main__':
  absltest.main()
