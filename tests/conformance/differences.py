"""What differs on purpose: case by case, what is seen on either side, and why.

`docs/differences.md` repeats the reasons; a test keeps the two in step. A case that
does not differ any more fails, as does one that differs in another way.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """`theirs` and `ours` are all that the case sees, in the states named."""

    why: str
    theirs: Any
    ours: Any
    states: tuple[str, ...] = ("fresh", "ready")


# Cases that grpc.aio itself does otherwise up to 1.83, and why.
BEFORE_1_84 = {
    "test_a_grace_that_is_none_is_refused": "`close` takes any grace",
    "test_close_with_grace_lets_calls_end": "`close` gives a stream no grace",
    "test_an_interceptor_sees_the_details_of_the_call": "metadata is kept as it came",
    "test_an_interceptor_raises": "its exception is logged as never retrieved",
    "test_an_interceptor_raises_an_rpc_error": "its exception is logged likewise",
    "test_a_stream_that_is_dropped_half_read_is_released": "it is, at once",
    "test_a_message_over_the_limit_is_an_error": "one of two texts, by chance",
    "test_metadata_that_cannot_be_sent_is_an_error": "a task is left",
    "test_calls_are_the_same_on_uvloop": "a line of the log says what is off",
}

RAISED = [["KeyError", "'in a callback'"]]
IN_THE_CLEAR = ["UsageError", "Call credentials are only valid on secure channels"]

DIFFERENCES: dict[str, Difference] = {
    "test_a_unary_call_whose_callback_raises_has_its_answer": Difference(
        "In grpc.aio the callback's exception replaces the answer; here it is logged.",
        RAISED,
        [b"a,b,c"],
    ),
    "test_a_stream_of_requests_whose_callback_raises_has_its_answer": Difference(
        "In grpc.aio the callback's exception replaces the answer; here it is logged.",
        RAISED,
        [b"a,b,c"],
    ),
    "test_the_callback_after_one_that_raises_is_called": Difference(
        "In grpc.aio it never hears of the end.",
        [],
        ["called"],
    ),
    "test_the_callback_of_a_stream_after_one_that_raises_is_called": Difference(
        "In grpc.aio it never hears of the end.",
        [],
        ["called"],
    ),
    "test_a_call_that_was_not_sent_shows_that": Difference(
        "`repr()` of a call that ended before it had a backend says so.",
        "<_AioCall of RPC that terminated with:\n"
        "\tstatus = Locally cancelled by application!\n"
        '\tdetails = "StatusCode.CANCELLED"\n'
        "\tdebug_error_string\n>",
        "<UnaryUnaryCall that was not sent: StatusCode.CANCELLED, "
        '"Locally cancelled by application!">',
        ("fresh",),
    ),
    "test_a_cancelled_call_has_no_connection_to_wait_for": Difference(
        "In grpc.aio `wait_for_connection()` of a call that was cancelled at once, "
        "with a stream of requests, never returns. Here it raises CancelledError, if "
        "the call had no backend yet.",
        "never",
        ["CancelledError", ""],
        ("fresh",),
    ),
    "test_a_channel_made_outside_of_a_loop_is_used_in_one": Difference(
        "grpc.aio binds a channel to the loop that it finds when it is made, and a "
        "use in another one fails. Ours binds at its first use.",
        "RuntimeError",
        "b'a'",
    ),
    "test_use_from_a_second_loop_is_a_clear_error": Difference(
        "Both raise RuntimeError; ours says what to do.",
        ["RuntimeError", False],
        ["RuntimeError", True],
    ),
    "test_a_message_of_another_type_is_refused": Difference(
        "grpc.aio logs what a serializer raises and sends an empty message. Here "
        "nothing is sent, and the exception comes when the call is awaited.",
        "bytes",
        "TypeError",
    ),
    "test_a_request_that_cannot_be_serialized_is_an_error": Difference(
        "The same, seen from the answer.",
        [b""],
        [["KeyError", "'no form'"]],
    ),
    "test_a_call_that_could_not_be_serialized_is_over": Difference(
        "The same, seen from the status, which is INTERNAL.",
        [True, False, "StatusCode.OK", False],
        [True, False, "StatusCode.INTERNAL", False],
    ),
    "test_a_unary_call_with_characters_that_are_not_allowed_says_so": Difference(
        "In grpc.aio it raises an ExecuteBatchError, which is no RpcError, and is "
        "never over. Here it is INTERNAL, as in the other three kinds.",
        ["later", "ExecuteBatchError"],
        ["later", "AioRpcError"],
    ),
    "test_credentials_are_not_sent_in_the_clear": Difference(
        "Both refuse, with the same UsageError. A call that waits for a backend "
        "raises it when it is awaited, not when it is made.",
        IN_THE_CLEAR,
        [IN_THE_CLEAR],
        ("fresh",),
    ),
    "test_a_request_over_the_limit_in_a_stream_says_so": Difference(
        "In grpc.aio it is an INTERNAL error with no reason, where both sides stream. "
        "Here it is RESOURCE_EXHAUSTED, as in the other three kinds.",
        ["StatusCode.INTERNAL", False],
        ["StatusCode.RESOURCE_EXHAUSTED", True],
    ),
    "test_a_stream_that_is_dropped_half_read_is_released": Difference(
        "In grpc.aio it lives until the channel is closed. Here it is cancelled when "
        "its call object is collected, and the server hears of it.",
        False,
        True,
    ),
}
