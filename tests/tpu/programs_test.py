"""What the TPU compiler sends between chips in a dense model's programs."""

import functools
import re

from absl.testing import absltest
import jax

from rl_tpu.assembly import ahead
from rl_tpu.config import loading
from rl_tpu.config import overrides
from rl_tpu.planning import topology
from tests.models import cases
from tests import tiny

VOCAB, WIDTH, LENGTH, ROWS = 1536, 256, 512, 8
WINDOW = 384  # Of one layer; key heads are fewer than devices on their axis.
MODEL = cases.config(
    vocab_size=VOCAB,
    width=WIDTH,
    num_layers=3,
    num_heads=8,
    num_kv_heads=2,
    head_width=128,
    mlp_width=512,
    max_length=LENGTH,
    local_layers=(1,),
    window=WINDOW,
)
_RESULT = re.compile(r'= (\(.*?\)|\S+) ([a-z-]+?)(?:-start)?\(')
_SHAPE = re.compile(r'\w+\[([\d,]*)\]')


@functools.cache
def programs() -> dict[str, str]:
  """Text of every program of a small agent on sixteen chips, by name."""
  _, devices = topology.describe('v5e:4x4')
  config = overrides.apply(
      loading.load_experiment(tiny.ROOT / 'experiments' / 'qwen3_8b_agent.py'),
      [
          'mesh.fsdp=4', 'mesh.tensor=4', f'budgets.window={LENGTH}',
          f'batching.row_length={LENGTH}', 'batching.tasks_per_batch=16',
          f'batching.rows_per_microbatch={ROWS}', 'sampler.slots=16',
          f'sampler.prefill_buckets={LENGTH}', 'sampler.prefill_rows=4',
          'compaction.lookahead=64', 'compaction.max_summary_tokens=32',
          'sampling.max_turn_tokens=64', 'model.logits_chunk=1024',
      ],
  )
  assembled = ahead.assemble(config, devices, model=MODEL)
  return {
      program.name: program.function.trace(*program.arguments)
      .lower()
      .compile()
      .as_text()
      for program in assembled.programs
      if program.name in ('decode', 'advantages', 'actor gradient')
  }


def shapes(text: str, kind: str) -> list[tuple[int, ...]]:
  """Shapes of the results of every collective of a kind."""
  found = []
  for result, name in _RESULT.findall(text):
    if name == kind:
      found += [
          tuple(int(n) for n in dims.split(',') if n)
          for dims in _SHAPE.findall(result)
      ]
  return found


class ProgramsTest(absltest.TestCase):

  def test_logits_are_not_gathered_over_the_vocabulary(self):
    text = programs()['actor gradient']
    gathered = shapes(text, 'all-gather')
    self.assertNotEmpty(gathered)
    for shape in gathered:
      # Nor is anything else that long: the table and the output layer lie
      # divided by it.
      self.assertNotIn(VOCAB, shape)

  def test_weights_are_gathered_over_fsdp_alone(self):
    # Matrices stay divided over the tensor axis: 512 inner columns in four.
    text = programs()['actor gradient']
    for shape in shapes(text, 'all-gather'):
      self.assertNotEqual(sorted(shape)[-2:], [WIDTH, 512])

  def test_the_recursion_gathers_no_tokens(self):
    for shape in shapes(programs()['advantages'], 'all-gather'):
      self.assertNotIn(LENGTH, shape)

  def test_decoding_gathers_nothing_of_the_cache(self):
    text = programs()['decode']
    for kind in ('all-gather', 'all-to-all', 'collective-permute'):
      for shape in shapes(text, kind):
        # A cache is [slots, heads, LENGTH or WINDOW, 128].
        is_long = LENGTH in shape or WINDOW in shape
        self.assertFalse(is_long and 128 in shape, (kind, shape))


if __name__ == '__main__':
  absltest.main()
