"""Accelerator types, against xpk's own table and the TPU compiler."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from launch import chips
from tests.launch import tools

# The devices that `plan` compiles for.
_COUNT_DEVICES = """
import json, sys
from rl_tpu.planning import topology
print(json.dumps({n: len(topology.describe(n)[1]) for n in sys.argv[1:]}))
"""
_XPK_TABLE = """
import json
from xpk.core import system_characteristics
table = system_characteristics.UserFacingNameToSystemCharacteristics
print(json.dumps({
    name: [s.topology, s.vms_per_slice, s.chips_per_vm, s.gke_accelerator]
    for name, s in table.items()
}))
"""


class ChipsTest(parameterized.TestCase):

  @parameterized.parameters(
      # v5p counts its two cores, v5e and v6e their chips.
      ('v5p-32', 16, 4, 16, '2x2x4', 'v5p:2x2x4'),
      ('v5p-128', 64, 16, 64, '4x4x4', 'v5p:4x4x4'),
      ('v5litepod-64', 64, 16, 64, '8x8', 'v5e:8x8'),
      ('v6e-16', 16, 4, 16, '4x4', 'v6e:4x4'),
      ('v4-8', 4, 1, 4, '2x2x1', 'v4:2x2x1'),
      ('tpu7x-8', 4, 1, 8, '2x2x1', 'tpu7x:2x2x1'),
  )
  def test_what_a_type_stands_for(
      self, name, num_chips, hosts, devices, topology, plan
  ):
    found = chips.find(name)
    self.assertEqual(found.accelerator_type, name)
    self.assertEqual(found.chips, num_chips)
    self.assertEqual(found.hosts, hosts)
    self.assertEqual(found.devices, devices)
    self.assertEqual(found.topology, topology)
    self.assertEqual(found.plan_topology, plan)

  @parameterized.parameters(
      ('v5p-33', 'v5p-32, v5p-16'),
      ('v5e-16', 'v5litepod-16'),
      ('v5p:4x4x4', 'v5p-128'),
      ('v5e:8x8', 'v5litepod-64'),
      ('v5q-32', 'v5p-32'),
      ('tpu7x', 'tpu7x-8, tpu7x-16'),
  )
  def test_an_unknown_type_is_refused_with_its_neighbours(self, wrong, near):
    with self.assertRaisesRegex(ValueError, f'--tpu-type={wrong}.*{near}'):
      chips.find(wrong)

  def test_types_agree_with_xpk(self):
    done = tools.run(str(tools.VENV / 'python'), '-c', _XPK_TABLE)
    table = json.loads(done.stdout)
    ours = {
        name: [s.topology, s.hosts, chips.CHIPS_PER_HOST,
               s.generation.gke_accelerator]
        for name, s in chips.SLICES.items()
    }
    # xpk starts v5e at eight chips; GKE and TPU VMs have four as well.
    del ours['v5litepod-4']
    self.assertNotIn('v5litepod-4', table)
    self.assertEqual(ours, {name: table.get(name) for name in ours})

  def test_device_counts_agree_with_the_tpu_compiler(self):
    expected = {
        s.plan_topology: s.devices
        for s in chips.SLICES.values()
        if s.chips <= 256
    }
    done = tools.python('-c', _COUNT_DEVICES, *expected, env=tools.COMPILER)
    self.assertGreater(len(expected), 30)
    self.assertEqual(json.loads(done.stdout), expected)


if __name__ == '__main__':
  absltest.main()
