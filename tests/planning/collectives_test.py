"""Bytes between devices, read from the text of a program."""

from absl.testing import absltest

from rl_tpu.planning import collectives

# The form in which the TPU compiler prints a program: a loop of 36 rounds
# around an all-gather, a fused reduce-scatter and an all-reduce.
PROGRAM = """
HloModule jit_f, is_scheduled=true

%condition (param.1: (s32[], f32[8,16])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(36)
  %param.1 = (s32[]{:T(128)}, f32[8,16]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%param.1), index=0
  ROOT %compare = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}

%fused (p.1: bf16[2,16]) -> bf16[8,16] {
  %p.1 = bf16[2,16]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.1 = bf16[8,16]{1,0:T(8,128)(2,1)} all-gather(%p.1), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
}

%all-reduce-scatter.3 (input.1: bf16[8,16]) -> bf16[2,16] {
  %input.1 = bf16[8,16]{1,0} parameter(0)
  %all-reduce.4 = bf16[8,16]{1,0} all-reduce(%input.1), channel_id=2, to_apply=%add
  ROOT %slice = bf16[2,16]{1,0} dynamic-slice(%all-reduce.4)
}

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (param.2: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %gathered = bf16[8,16]{1,0} fusion(%x), kind=kCustom, calls=%fused
  %scattered = bf16[2,16]{1,0} fusion(%y), kind=kCustom, calls=%all-reduce-scatter.3
}

ENTRY %main (arg: f32[8,16]) -> f32[] {
  %while.1 = (s32[], f32[8,16]{1,0}) while(%init), condition=%condition, body=%body
  ROOT %total = f32[] all-reduce(%part), channel_id=3, to_apply=%add
}
"""

# A gather that two products overlap: the same channel in four fusions.
OVERLAPPED = """
%start (p.1: bf16[2,16]) -> (bf16[2,16], bf16[8,16]) {
  %all-gather.1 = bf16[8,16]{1,0} all-gather(%p.1), channel_id=7, dimensions={0}
  ROOT %custom-call.1 = (bf16[2,16]{1,0}, bf16[8,16]{1,0}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (p.2: bf16[2,16]) -> bf16[8,16] {
  %all-gather.2 = bf16[8,16]{1,0} all-gather(%p.2), channel_id=7, dimensions={0}
  ROOT %convolution.1 = bf16[4,4]{1,0} convolution(%x, %y)
}

%async_collective_fusion.2 (p.3: bf16[2,16]) -> bf16[8,16] {
  %all-gather.3 = bf16[8,16]{1,0} all-gather(%p.3), channel_id=7, dimensions={0}
  ROOT %convolution.2 = bf16[4,4]{1,0} convolution(%x, %y)
}

%done (p.4: bf16[2,16]) -> bf16[8,16] {
  %all-gather.4 = bf16[8,16]{1,0} all-gather(%p.4), channel_id=7, dimensions={0}
  ROOT %custom-call.2 = bf16[8,16]{1,0} custom-call(%all-gather.4), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (arg: bf16[2,16]) -> bf16[8,16] {
  %f.1 = (bf16[2,16]{1,0}, bf16[8,16]{1,0}) fusion(%arg), kind=kCustom, calls=%start
  %f.2 = bf16[8,16]{1,0} fusion(%f.1), kind=kCustom, calls=%async_collective_fusion.1
  %f.3 = bf16[8,16]{1,0} fusion(%f.2), kind=kCustom, calls=%async_collective_fusion.2
  ROOT %f.4 = bf16[8,16]{1,0} fusion(%f.3), kind=kCustom, calls=%done
}
"""


class CollectivesTest(absltest.TestCase):

  def test_loops_and_fusions_are_followed(self):
    # 8 x 16 numbers of two bytes, 36 times; an all-reduce of one number goes
    # both ways.
    self.assertEqual(
        collectives.bytes_by_kind(PROGRAM),
        {
            'all-gather': 36 * 8 * 16 * 2,
            'reduce-scatter': 36 * 8 * 16 * 2,
            'all-reduce': 2 * 4,
        },
    )

  def test_a_gather_overlapped_with_arithmetic_is_sent_once(self):
    self.assertEqual(
        collectives.bytes_by_kind(OVERLAPPED), {'all-gather': 8 * 16 * 2}
    )

  def test_a_program_that_sends_nothing(self):
    self.assertEqual(
        collectives.bytes_by_kind('ENTRY %main (a: f32[2]) -> f32[2] {\n}\n'),
        {},
    )


if __name__ == '__main__':
  absltest.main()
