"""What kind of token the policy sampled (L19)."""

# A token's type is an index into this tuple; unknown is text.
NAMES = (
    'text',
    'structure',
    'tool_name',
    'arg_key',
    'arg_value',
    'stop',
    'summary',
)
TEXT = NAMES.index('text')
STOP = NAMES.index('stop')
SUMMARY = NAMES.index('summary')
