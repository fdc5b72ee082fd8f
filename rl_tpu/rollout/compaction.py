"""When a window is compacted, and what opens the next one."""

from rl_tpu.config import schema


def is_due(
    config: schema.CompactionConfig,
    *,
    window: int,
    used: int,
    prompt: int,
    request: int,
    turns: int,
    max_turn_tokens: int,
    at_prompt: bool,
) -> bool:
  """Decides before a turn whether the window is compacted first.

  Args:
    config: the room's settings.
    window: tokens a segment may hold.
    used: tokens of the open segment, the last observation included.
    prompt: tokens of what the agent would be asked next.
    request: tokens that ask for a summary.
    turns: turns of the open segment.
    max_turn_tokens: longest reply.
    at_prompt: a new prompt is about to be shown: the natural place for a cut.

  Returns:
    True where a summary has to be written now. Room for the request and the
    summary itself is always kept, so a cut decided here fits.
  """
  if config.mode == 'off' or turns == 0:
    return False
  kept = 0
  if config.author == 'policy':
    kept = request + config.max_summary_tokens
  # Another turn and what the environment says to it must leave that room.
  hard = used + prompt + max_turn_tokens + config.observation_reserve + kept
  if hard > window:
    return True
  if config.mode == 'fixed':
    return turns >= config.every_turns
  return at_prompt and used + prompt + config.lookahead + kept > window
