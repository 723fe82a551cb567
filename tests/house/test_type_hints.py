"""Frameworks that inject arguments ask public names for their type hints."""

import inspect
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, get_type_hints

import pytest

import lbclient


def with_hints() -> Iterator[tuple[str, Any]]:
    """Public functions and classes, and the classes' public methods."""
    for name in vars(lbclient)["__all__"]:
        thing = getattr(lbclient, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        if inspect.isclass(thing):
            yield from methods(name, thing)
    yield "server", import_module("lbclient.server").server  # a module to call


def methods(name: str, owner: type) -> Iterator[tuple[str, Any]]:
    for each in dir(owner):
        if each.startswith("_") and each not in ("__init__", "__call__"):
            continue
        found = inspect.getattr_static(owner, each)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, cached_property):
            found = found.func
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if inspect.isfunction(found) and found.__module__.startswith("lbclient"):
            yield f"{name}.{each}", found


NAMED = dict(with_hints())


@pytest.mark.parametrize("name", NAMED)
def test_type_hints_of_public_names_are_found(name: str) -> None:
    get_type_hints(NAMED[name])


def test_what_returns_a_record_says_which() -> None:
    for name, record in (
        ("info", lbclient.CallInfo),
        ("Channel.statistics", lbclient.ChannelStatistics),
        ("Server.statistics", lbclient.ServerStatistics),
    ):
        assert get_type_hints(NAMED[name])["return"] is record
