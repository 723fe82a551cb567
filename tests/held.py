"""What an object keeps alive, found as the garbage collector finds it.

For tests that memory is bounded, or that something is let go of: they hold however the
object keeps it.
"""

import gc
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

# They lead to all the rest of the program.
NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def held_by(root: object, kind: type[T]) -> list[T]:
    """All objects of a kind that `root` keeps alive, itself included.

    What only a function, a method or a weak reference leads to is left out.
    """
    seen: dict[int, Any] = {id(root): root}
    new: list[Any] = [root]
    while new:
        # The collector passes over keys that are texts.
        keys = chain.from_iterable(each for each in new if isinstance(each, dict))
        found = [
            each
            for each in chain(gc.get_referents(*new), keys)
            if not isinstance(each, NOT_ITS_OWN) and id(each) not in seen
        ]
        seen.update((id(each), each) for each in found)
        new = list({id(each): each for each in found}.values())
    return [each for each in seen.values() if isinstance(each, kind)]


def count_held(root: object) -> int:
    """How many objects `root` keeps alive."""
    return len(held_by(root, object))
