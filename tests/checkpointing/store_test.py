"""O7, K28, K29: what a checkpoint holds, and which one is taken."""

import contextlib
import os
import pathlib
import resource
import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec

from rl_tpu.checkpointing import contents
from rl_tpu.checkpointing import store
from rl_tpu.config import schema
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.types import stops
from tests import tiny

HOST = tiny.host_part()


def state(scale: float = 1.0):
  return {
      'w': jnp.arange(32, dtype=jnp.float32).reshape(8, 4) * scale,
      'count': jnp.int32(3),
  }


@contextlib.contextmanager
def small_files():
  """No file of this process grows over 1000 bytes: a disk that is full."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class StoreTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def _open(self, keep: int = 2) -> store.CheckpointStore:
    made = store.CheckpointStore(
        self.folder, schema.CheckpointConfig(keep=keep)
    )
    self.addCleanup(made.close)
    return made

  def test_round_trip_is_bit_equal(self):
    made = self._open()
    made.save(4, state(), HOST | {'cursor': {'next_index': 7}})
    made.close()
    again = self._open()
    self.assertEqual(again.step(), 4)
    got, host = again.restore(4, jax.tree.map(jnp.zeros_like, state()))
    np.testing.assert_array_equal(got['w'], state()['w'])
    self.assertEqual(int(got['count']), 3)
    self.assertEqual(host['cursor'], {'next_index': 7})

  def test_O7_a_host_state_without_a_part_is_not_saved(self):
    with self.assertRaisesRegex(ValueError, 'ledger'):
      self._open().save(1, state(), {k: 0 for k in HOST if k != 'ledger'})

  def test_best_is_kept_beside_the_latest(self):
    made = self._open(keep=1)
    for step, success in ((1, 0.2), (2, 0.9), (3, 0.5), (4, None)):
      made.save(step, state(step), HOST, success=success)
    made.close()
    again = self._open(keep=1)
    self.assertEqual(again.step('latest'), 4)
    self.assertEqual(again.step('best'), 2)
    got, _ = again.restore(2, state())
    np.testing.assert_array_equal(got['w'], state(2)['w'])

  def test_saving_a_step_twice_in_a_row_keeps_the_first(self):
    made = self._open()
    made.save(4, state(1), HOST)
    made.save(4, state(2), HOST)
    made.close()
    got, _ = self._open().restore(4, state())
    np.testing.assert_array_equal(got['w'], state(1)['w'])

  def test_best_without_an_evaluation_is_the_latest(self):
    made = self._open()
    made.save(1, state(), HOST)
    made.close()
    self.assertEqual(self._open().step('best'), 1)

  def test_a_part_is_read_and_the_rest_stays_on_disk(self):
    made = self._open()
    made.save(4, {'net': state(), 'moments': state(2)}, HOST)
    made.close()
    again = self._open()
    self.assertEqual(again.steps(), [4])
    mesh = mesh_lib.make_mesh(schema.MeshConfig())
    split = NamedSharding(mesh, PartitionSpec('data'))
    whole = NamedSharding(mesh, PartitionSpec())
    like = {
        'w': jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=split),
        'count': jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
    }
    got, _ = again.restore(4, {'net': like})
    self.assertEqual(list(got), ['net'])
    np.testing.assert_array_equal(got['net']['w'], state()['w'])
    self.assertEqual(got['net']['w'].sharding, split)

  @parameterized.parameters(
      ('head', 'head', state()),
      ('critic', 'critic', {'w': jnp.zeros((8, 5)), 'count': jnp.int32(0)}),
  )
  def test_O7_arrays_that_are_missing_are_named_and_may_begin_anew(
      self, name, named, like
  ):
    made = self._open()
    made.save(4, {'actor': state(), 'critic': state(2)}, HOST)
    made.wait()
    wanted = {'actor': state(0), name: like}
    with self.assertRaisesRegex(
        ValueError,
        f'checkpoint 4 .* lacks {named}, .* --allow_partial={named},',
    ) as caught:
      made.restore(4, wanted)
    self.assertNotIsInstance(caught.exception, store.DamagedError)
    got, host = made.restore(4, wanted, without=(name,))
    self.assertEqual((list(got), host), (['actor'], HOST))
    np.testing.assert_array_equal(got['actor']['w'], state()['w'])

  def test_O7_host_values_that_are_missing_are_named_and_may_begin_anew(self):
    made = self._open()
    older = tuple(n for n in contents.HOST if n not in ('ledger', 'cursor'))
    with mock.patch.object(contents, 'HOST', older):
      made.save(4, state(), {name: HOST[name] for name in older})
    made.wait()
    with self.assertRaisesRegex(
        ValueError, 'lacks cursor, ledger, .* --allow_partial=cursor,ledger,'
    ):
      made.restore_latest(state())
    with self.assertRaisesRegex(ValueError, '--allow_partial=ledger,'):
      made.restore_latest(state(), without=('cursor',))
    _, _, host, problems = made.restore_latest(
        state(), without=('cursor', 'ledger')
    )
    self.assertEqual((host, problems), ({n: HOST[n] for n in older}, []))

  def test_O7_settings_that_are_not_those_of_their_hash_are_damage(self):
    made = self._open()
    host = HOST | {'config': {'seed': 1}}
    for step, values in ((1, {'seed': 1}), (2, {'seed': 2})):
      made.save(
          step, state(), host | {'config_hash': contents.digest(values)}
      )
    made.wait()
    self.assertEqual(made.restore(1, state())[1]['config'], {'seed': 1})
    with self.assertRaisesRegex(store.DamagedError, '2 .* its config part'):
      made.restore(2, state())

  def test_O7_no_run_goes_on_without_its_place(self):
    made = self._open()
    older = tuple(n for n in contents.HOST if n != 'policy_version')
    with mock.patch.object(contents, 'HOST', older):
      made.save(4, state(), {name: HOST[name] for name in older})
    made.wait()
    with self.assertRaisesRegex(
        ValueError, 'lacks policy_version: .*--workdir'
    ):
      made.restore(4, state(), without=('policy_version',))

  def test_a_changed_bit_or_a_lost_file_is_noticed_or_harmless(self):
    made = self._open(keep=5)
    wanted = {'net': state(1.5), 'moments': state(0.25)}
    made.save(7, wanted, HOST | {'cursor': {'next_index': 7}}, success=0.5)
    made.close()
    like = jax.tree.map(jnp.zeros_like, wanted)
    saved = pathlib.Path(self.folder)
    whole = pathlib.Path(self.create_tempdir().full_path) / 'whole'
    shutil.copytree(saved, whole)
    files = sorted(
        p.relative_to(whole) for p in whole.rglob('*') if p.is_file()
    )
    self.assertGreater(len(files), 5)
    noticed = 0
    for name in files:
      size = (whole / name).stat().st_size
      places = sorted({0, size // 3, size // 2, size - 1} - {-1})
      for place in (*places, None):
        shutil.rmtree(saved)
        shutil.copytree(whole, saved)
        if place is None:
          (saved / name).unlink()
        elif size:
          data = bytearray((saved / name).read_bytes())
          data[place] ^= 4
          (saved / name).write_bytes(data)
        again = self._open(keep=5)
        try:
          found = again.restore_latest(like)
          success = (again._manager.metrics(7) or {}).get('success')
        except ValueError:
          noticed += 1
          again.close()
          continue
        again.close()
        if found is None:  # Without its record it is not a step at all.
          noticed += 1
          continue
        step, got, host, _ = found
        self.assertEqual(step, 7)
        # Never another success than the one that was measured.
        self.assertIn(success, (0.5, -1.0, None), name)
        jax.tree.map(np.testing.assert_array_equal, got, wanted)
        self.assertEqual(host, HOST | {'cursor': {'next_index': 7}})
    self.assertGreater(noticed, len(files))

  def test_the_one_before_a_damaged_step_is_taken(self):
    made = self._open(keep=5)
    for step in (1, 2):
      made.save(step, state(step), HOST | {'update': step})
    made.close()
    host = pathlib.Path(self.folder) / '2' / 'host' / 'metadata'
    host.write_text(host.read_text().replace('"update": 2', '"update": 9'))
    again = self._open(keep=5)
    step, got, found, problems = again.restore_latest(state())
    self.assertEqual((step, found['update']), (1, 1))
    np.testing.assert_array_equal(got['w'], state(1)['w'])
    self.assertLen(problems, 1)
    self.assertRegex(problems[0], 'checkpoint 2 .*damaged: its host part')
    # The run comes to step 2 again: it has to be saved, not found there.
    again.save(2, state(5), HOST | {'update': 2})
    again.close()
    step, got, _, problems = self._open(keep=5).restore_latest(state())
    self.assertEqual((step, problems), (2, []))
    np.testing.assert_array_equal(got['w'], state(5)['w'])

  def test_a_full_disk_is_named_and_the_steps_before_stay(self):
    made = self._open(keep=5)
    large = state() | {'x': jax.random.normal(jax.random.key(0), (64, 64))}
    made.save(1, large, HOST)
    made.wait()
    with small_files():
      made.save(2, large, HOST)
      # The save before is asked for, whenever that is.
      with self.assertRaisesRegex(
          stops.WriteFailed, 'checkpoint 2 could not be saved in .*too large'
      ):
        made.save(3, large, HOST)
    self.assertEqual(made.steps(), [1])
    with small_files():
      made.save(4, large, HOST)
      with self.assertRaisesRegex(stops.WriteFailed, 'checkpoint 4 could'):
        made.close()
    again = store.CheckpointStore(
        self.folder, schema.CheckpointConfig(keep=5), cleans=True
    )
    again.save(5, large, HOST)
    again.close()
    # What the two saves have left does not fill the disk for ever.
    self.assertCountEqual(os.listdir(self.folder), ['1', '5'])

  def test_a_lost_device_or_process_is_no_failed_write(self):
    made = self._open()
    with mock.patch.object(
        made._manager, 'wait_until_finished',
        side_effect=jax.errors.JaxRuntimeError('closed by peer'),
    ):
      with self.assertRaises(jax.errors.JaxRuntimeError):
        made.wait()

  def test_what_another_program_saves_is_left_alone(self):
    under_way = pathlib.Path(self.folder) / '3.orbax-checkpoint-tmp'
    under_way.mkdir()
    self._open().close()
    self.assertTrue(under_way.exists())

  def test_K28_an_unfinished_step_is_ignored_and_can_be_saved_again(self):
    made = self._open(keep=5)
    made.save(1800, state(1), HOST)
    made.save(1820, state(2), HOST)
    made.close()
    whole = pathlib.Path(self.folder)
    for damage in ('no metadata', 'no arrays', 'empty'):
      folder = whole / '1820'
      if damage == 'no metadata':
        os.unlink(folder / '_CHECKPOINT_METADATA')
      elif damage == 'no arrays':
        shutil.rmtree(folder / 'state')
      else:
        shutil.rmtree(folder)
        folder.mkdir()
      again = self._open(keep=5)
      self.assertEqual(again.step(), 1800, damage)
      self.assertEqual(again.ignored_steps(), [1820], damage)
      again.close()
    again = self._open(keep=5)
    again.save(1820, state(3), HOST)
    again.close()
    again = self._open(keep=5)
    self.assertEqual(again.step(), 1820)
    got, _ = again.restore(1820, state())
    np.testing.assert_array_equal(got['w'], state(3)['w'])

  def test_K29_restores_onto_another_number_of_devices(self):
    def placed(devices: int):
      mesh = mesh_lib.make_mesh(
          schema.MeshConfig(data=1, fsdp=-1), jax.devices()[:devices]
      )
      rows = NamedSharding(mesh, PartitionSpec('fsdp'))
      whole = NamedSharding(mesh, PartitionSpec())
      return jax.device_put(state(), {'w': rows, 'count': whole})

    made = self._open()
    made.save(1, placed(8), HOST)
    made.close()
    for devices in (1, 2, 4):
      like = jax.tree.map(jnp.zeros_like, placed(devices))
      got, _ = self._open().restore(1, like)
      np.testing.assert_array_equal(got['w'], state()['w'])
      self.assertLen(got['w'].sharding.device_set, devices)


if __name__ == '__main__':
  absltest.main()
