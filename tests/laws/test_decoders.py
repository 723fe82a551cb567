"""Whatever bytes come: a decoder returns, or raises what its caller expects."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.decoders import DECODERS, Decoder, tried
from lbclient.resolvers.endpoint_slices import Gone

CHANGES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=8)),
    max_size=6,
)


def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Some bytes of an example are others, or gone, or there twice."""
    for place, much, new in changes:
        at = place % (len(data) + 1)
        data = data[:at] + new + data[at + much :]
    return data


each = pytest.mark.parametrize("decoder", DECODERS, ids=lambda one: one.name)


@each
@given(data=st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(decoder: Decoder, data: bytes) -> None:
    tried(decoder, data)


@each
@given(number=st.integers(0, 1), changes=CHANGES)
def test_damaged_examples_are_decoded_or_refused(
    decoder: Decoder, number: int, changes: list[tuple[int, int, bytes]]
) -> None:
    example = decoder.examples[number % len(decoder.examples)]
    tried(decoder, changed(example, changes))


@each
def test_examples_are_taken(decoder: Decoder) -> None:
    for example in decoder.examples:
        with suppress(Gone):  # as one of the events says
            decoder.decode(example)
