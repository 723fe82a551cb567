"""Reads the items of a YAML list one by one, without building the whole list.

10,000 groups would be about a million objects, and each full garbage collection of them
stops all threads, for 0.3 s in the worst case. Needs PyYAML, an extra.
"""

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.composer import Composer

MERGE = "tag:yaml.org,2002:merge"
# Ours: an endpoint has half a dozen names.
MOST_MERGED = 100  # mappings in one merge
MOST_KEYS = 1000  # names in one mapping, with those merged


class Loader(Composer, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's parser if available; its own composer cannot be interrupted."""

    def flatten_mapping(self, node: Any) -> None:
        """Merges (`<<`), which can name one another's results again and again."""
        for key, value in node.value:
            if key.tag == MERGE and len(value.value) > MOST_MERGED:
                raise ValueError(f"want a merge of at most {MOST_MERGED} mappings")
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            raise ValueError(f"want at most {MOST_KEYS} names, with those merged")

    def __init__(self, data: bytes) -> None:
        super(Composer, self).__init__(data)
        Composer.__init__(self)


def items(data: bytes) -> Iterator[object]:
    """Raises ValueError for what is no list, or no YAML, when it comes to it.

    >>> list(items(b"[{a: 1}, [2], three]"))
    [{'a': 1}, [2], 'three']
    """
    try:
        yield from _items(Loader(data))
    except (ValueError, RecursionError):
        raise
    except Exception as error:  # PyYAML's own, or what its constructors run into
        raise ValueError(str(error) or repr(error)) from error


def _items(loader: Any) -> Iterator[object]:
    loader.get_event()  # the stream's start
    if loader.check_event(yaml.StreamEndEvent):
        raise ValueError("want a list of groups, not nothing")
    loader.get_event()  # the document's
    if not loader.check_event(yaml.SequenceStartEvent):
        is_text = loader.check_event(yaml.ScalarEvent)
        raise ValueError(f"want a list of groups, not {'text' if is_text else 'names'}")
    loader.get_event()
    while not loader.check_event(yaml.SequenceEndEvent):
        yield loader.construct_document(loader.compose_node(None, None))
    loader.get_event()
    loader.get_event()  # the document's end
    if not loader.check_event(yaml.StreamEndEvent):
        raise ValueError("want one document, not several")
