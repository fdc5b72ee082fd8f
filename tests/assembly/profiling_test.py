"""Which updates are traced, and what the trace leaves behind."""

import pathlib
from unittest import mock

import jax
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.assembly import profiling
from rl_tpu.config import schema


class ProfilerTest(parameterized.TestCase):

  @parameterized.parameters(
      # Updates of the run, first and last to trace, updates within a trace.
      (range(1, 6), 2, 3, [2, 3]),
      (range(1, 6), 1, 1, [1]),
      (range(1, 6), 4, 9, [4, 5]),
      (range(1, 6), 0, 0, []),
      # Taken up again in the middle, or after the last.
      (range(3, 6), 2, 4, [3, 4]),
      (range(5, 6), 2, 4, []),
  )
  def test_the_asked_for_updates_are_traced(self, updates, first, last, traced):
    found, running = [], []
    profiler = profiling.Profiler(
        schema.LogConfig(profile_first=first, profile_last=last), 'work'
    )
    with (
        mock.patch.object(jax.profiler, 'start_trace', running.append),
        mock.patch.object(jax.profiler, 'stop_trace', running.pop),
    ):
      for update in updates:
        profiler.begin(update)
        self.assertLessEqual(len(running), 1)
        found += [update] if running else []
      profiler.close()
      self.assertEmpty(running)
    self.assertEqual(found, traced)

  def test_a_trace_is_written_for_xprof(self):
    folder = self.create_tempdir().full_path
    profiler = profiling.Profiler(
        schema.LogConfig(profile_first=1, profile_last=1), folder
    )
    profiler.begin(1)
    jax.numpy.ones(3).block_until_ready()
    profiler.close()
    written = pathlib.Path(folder).glob('profile/plugins/profile/*/*.xplane.pb')
    self.assertLen(list(written), 1)


if __name__ == '__main__':
  absltest.main()
