"""What waits in gRPC's core, of which only the calls are counted that have begun."""

from lbclient.server.overload.unseen import LATE, MANY, OVER, PAUSE, SHARE, Unseen

ASKED = 16
MOST = 1000 + 1 + ASKED
TICK = 0.1  # seconds


class Core:
    """`began` requests have arrived here, and `taken` of them were handed over."""

    def __init__(self) -> None:
        self.now = 0.0
        self.began = self.taken = 0
        self.question = self.spent = 0.0  # seconds; of one, and of all so far
        self.unseen = Unseen(lambda: self.spent)
        self.unseen.count_by(self._read, 1000)

    def _read(self) -> int:
        self.spent += self.question
        return self.began

    def sample(
        self,
        *,
        came: int,
        taken: int,
        is_behind: bool,
        after: float = TICK,
        asked: int = ASKED,
        is_prompt: bool = False,
    ) -> int:
        self.now += after
        self.began += came
        self.taken += taken
        self.unseen.sample(self.now, self.taken, asked, is_behind, is_prompt)
        return self.unseen.waiting


def flooded() -> Core:
    core = Core()
    for waiting in range(100, 500, 100):
        assert core.sample(came=200, taken=100, is_behind=True) == waiting
    return core


def test_what_waits_still_waits_while_nothing_is_taken() -> None:
    """Beside hundreds of requests that have begun events of the core come late."""
    core = flooded()
    assert core.sample(came=150, taken=0, is_behind=False) == 550
    assert core.sample(came=150, taken=16, is_behind=False) == 684
    assert core.sample(came=150, taken=400, is_behind=True) == 434
    assert core.unseen.ended == 0


def test_what_came_while_the_loop_stood_still_waits() -> None:
    core = flooded()
    assert core.sample(came=300, taken=0, is_behind=False, after=2 * PAUSE) == 700
    assert core.unseen.ended == 0


def test_what_the_core_ended_does_not_wait() -> None:
    core = flooded()
    core.sample(came=MOST - 400 + 300, taken=0, is_behind=True)
    assert (core.unseen.waiting, core.unseen.ended) == (MOST, 300)
    core.sample(came=0, taken=MOST, is_behind=True)
    assert core.sample(came=0, taken=0, is_behind=False) == 0
    for _ in range(round(PAUSE / TICK) + 1):
        core.sample(came=0, taken=0, is_behind=False)
    assert (core.unseen.waiting, core.unseen.ended) == (0, 300)


def test_who_takes_all_that_comes_has_none_waiting() -> None:
    core = Core()
    for _ in range(50):
        assert core.sample(came=2 * MANY, taken=2 * MANY, is_behind=False) == 0
    assert core.unseen.ended == 0


def test_nothing_is_asked_where_nothing_comes() -> None:
    core = flooded()
    core.sample(came=0, taken=400, is_behind=True)
    for _ in range(round(PAUSE / TICK) + 1):
        core.sample(came=0, taken=0, is_behind=False)
    asked_at = core.unseen._asked_at
    core.sample(came=0, taken=0, is_behind=False)
    assert core.unseen._asked_at == asked_at


def test_soon_after_a_flood_none_wait() -> None:
    """Some that seem to wait were ended by the core between two samples."""
    core = flooded()
    assert core.sample(came=0, taken=300, is_behind=True) == 100
    for _ in range(round(OVER / TICK)):
        assert core.sample(came=40, taken=40, is_behind=False) == 100
    assert core.sample(came=40, taken=40, is_behind=False) == 0
    assert core.unseen.ended == 0  # nobody can be certain of it yet


def test_who_is_asked_for_and_comes_slowly_waits() -> None:
    """Where many are asked for at once there always are some that have not come."""
    core = Core()
    for _ in range(round(PAUSE / TICK)):
        assert core.sample(came=400, taken=400, is_behind=False, asked=512) == 0
    for _ in range(round(OVER / TICK)):
        core.sample(came=500, taken=400, is_behind=False, asked=512)
    assert core.sample(came=500, taken=400, is_behind=False, asked=512) == 400
    assert core.sample(came=10, taken=400, is_behind=False, asked=512) == 10


def test_as_soon_as_a_flood_is_over_it_is_known_who_was_ended() -> None:
    """Before many are asked for again, for then nothing would tell."""
    core = flooded()
    core.sample(came=MOST, taken=0, is_behind=True)
    assert core.unseen.waiting == MOST
    while core.unseen.waiting:
        core.sample(came=MANY, taken=MANY, is_behind=False)
    for _ in range(round(PAUSE / TICK)):
        assert core.sample(came=MANY, taken=MANY, is_behind=False, asked=512) == 0


def test_none_wait_where_many_are_asked_for_and_who_comes_is_there_at_once() -> None:
    """Else what the core ended in a flood would look as if it waited, for ever."""
    core = flooded()
    ended = 300
    core.sample(came=ended, taken=400, is_behind=True, asked=256, is_prompt=True)
    assert core.unseen.waiting == ended
    for _ in range(round(OVER / TICK)):
        core.sample(came=40, taken=40, is_behind=False, asked=256, is_prompt=True)
    assert (
        core.sample(came=40, taken=40, is_behind=False, asked=256, is_prompt=True) == 0
    )


def test_questions_that_take_long_do_not_keep_the_loop_busy() -> None:
    """With a thousand clients and little processor one took 0.3 s: the loop stood
    still, which looks as if much came, and another one was asked, for ever."""
    core, seconds = flooded(), 60.0
    core.question, before, end = LATE, 0.0, core.now + seconds
    while core.now < end:
        stood_still, before = core.spent - before, core.spent
        core.sample(
            came=4, taken=4, is_behind=stood_still > 0.0, after=TICK + stood_still
        )
    assert 0 < core.spent <= SHARE * seconds + core.question


def test_what_waits_still_waits_until_the_next_question() -> None:
    core = flooded()
    core.question = 1.1 * TICK * SHARE  # one in two samples
    said = [core.sample(came=200, taken=100, is_behind=True) for _ in range(4)]
    assert said == [500, 500, 700, 700]
